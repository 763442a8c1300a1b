"""What diagnosing experts and training some of them take beside what a run makes itself."""

import json
from collections.abc import Mapping

from afm_core.config import ConfigError, RunConfig
from afm_core.execution.model_reference import names_source
from afm_core.moe.selection import selection_name
from afm_core.store import ArtifactKind, ArtifactRef, Store
from afm_core.training import is_made


def expert_inputs(store: Store, config: RunConfig) -> dict[str, ArtifactRef]:
    """The input `diagnosis` of the stage sft if sft.experts is set, else nothing.

    Raises:
        ConfigError: no such artifact, or it has no selection for that domain and score.
    """
    experts = config.sft.experts
    if experts is None:
        return {}
    found = store.find(experts.diagnosis, ArtifactKind.DIAGNOSIS)
    files = {file.path for file in store.manifest(found).files}
    if selection_name(experts.domain, experts.score) not in files:
        known = sorted(
            name.removeprefix("selections/").removesuffix(".json") for name in files if "selections/" in name
        )
        raise ConfigError(
            f"sft.experts: the diagnosis {found.digest[:12]} has no selection {experts.domain}-{experts.score}; it has "
            f"{', '.join(known)}"
        )
    return {"diagnosis": found}


def diagnosis_overrides(model: str, domains: Mapping[str, str]) -> list[str]:
    """`section.key=value` for a diagnosis of a model (where it is no artifact yet) on further domains (name -> file).

    Raises:
        ConfigError: the model `tiny`, which a run makes and which has no experts.
    """
    if is_made(model):
        raise ConfigError(f"the model {model!r} has no mixture-of-experts layer: there is no routing to diagnose")
    asked = [f"diagnose.domains.{name}={json.dumps(file)}" for name, file in domains.items()]
    return [*asked, f"model.source={json.dumps(model)}"] if names_source(model) else asked


def checked_domains(config: RunConfig) -> None:
    """Refuse a diagnosis without domains before anything is fetched."""
    if not config.diagnose.domains:
        raise ConfigError("no domains to diagnose: give `--domains name=FILE`, or set diagnose.domains.NAME=FILE")
