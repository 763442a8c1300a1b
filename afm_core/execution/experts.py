"""What diagnosing experts and training some of them take from the store, beside what a run makes itself."""

import re

from afm_core.config import ConfigError, RunConfig
from afm_core.execution.session import RunSession
from afm_core.store import ArtifactKind, ArtifactRef
from afm_core.tracking import Registry

CHAMPION = "champion"


def expert_inputs(session: RunSession) -> dict[str, ArtifactRef]:
    """`diagnosis` with its artifact if sft.experts is set, else nothing. Raises ConfigError if there is none such."""
    experts = session.config.sft.experts
    return {} if experts is None else {"diagnosis": session.store.find(experts.diagnosis, ArtifactKind.DIAGNOSIS)}


def names_source(model: str) -> bool:
    """Whether a text names where a model comes from (a directory, s3://, a hub id), not one of the store."""
    return model != CHAMPION and re.fullmatch("(model:)?[0-9a-fA-F]{4,64}", model) is None


def stored_model(session: RunSession, model: str) -> ArtifactRef:
    """The champion, or the model of a digest. Raises ConfigError if there is none."""
    if model != CHAMPION:
        return session.store.find(model, ArtifactKind.MODEL)
    champion = Registry.of(session.config).champion()
    if champion is None:
        raise ConfigError("no model is registered as champion: give a digest, a model directory or a hub id")
    return champion.ref


def checked_domains(config: RunConfig) -> None:
    """Refuse a diagnosis without domains before anything is fetched."""
    if not config.diagnose.domains:
        raise ConfigError("no domains to diagnose: give `--domains name=FILE`, or set diagnose.domains.NAME=FILE")
