"""What a run would do, without doing it: stages, keys as far as they are known, what is cached, and memory estimates.

A key needs its inputs' digests: behind the first stage that is not cached, keys are unknown and said to be so.
"""

from collections.abc import Iterable

from pydantic import BaseModel

from afm_core.config import Dtype, RunConfig, home
from afm_core.execution.session import store_uri
from afm_core.execution.stages import key_of, stage_named
from afm_core.store import ArtifactRef, StageSpec, Store, open_store

_ROAD: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("corpus", "", {}),
    ("tasks", "", {"corpus": "corpus"}),
    ("teach", "", {"corpus": "corpus", "tasks": "tasks"}),
    ("curate", "", {"demonstrations": "teach", "tasks": "tasks"}),
    ("base", "", {}),
    ("sft", "", {"base": "base", "demonstrations": "curate"}),
    ("evaluate", "policy", {"tasks": "tasks", "corpus": "corpus", "model": "sft"}),
    (
        "evaluate",
        "base",
        {"tasks": "tasks", "corpus": "corpus", "model": "base", "demonstrations": "curate"},
    ),
    ("evaluate", "reference", {"tasks": "tasks", "corpus": "corpus"}),
)
_PARAMETERS = {"smollm2-135m": 134_515_008, "tiny": 1_000_000}


class PlannedStage(BaseModel):
    """One stage of the plan. `key` is None while an input's digest is unknown."""

    name: str
    key: str | None
    cached: bool
    artifact: ArtifactRef | None = None
    resources: str = ""


def plan_run(config: RunConfig, refresh: Iterable[str] = ()) -> list[PlannedStage]:
    """The stages of a run in order. Raises ConfigError for an unusable store or an unknown stage in `refresh`."""
    anew = frozenset(stage_named(name).name for name in refresh)
    store = open_store(store_uri(config), home() / "cache", create=False)
    known: dict[str, ArtifactRef] = {}
    steps = []
    for name, variant, sources in _ROAD:
        if name == "base" and config.model.source == "tiny":
            sources = {"corpus": "corpus"}
        step = _plan_stage(store, config, name, variant, sources, known)
        if name in anew:
            step = step.model_copy(update={"cached": False, "artifact": None})
        if step.artifact is not None and not variant:
            known[name] = step.artifact
        steps.append(step)
    steps.append(PlannedStage(name="register", key=None, cached=False, resources="after evaluate and the champion"))
    return steps


def _plan_stage(
    store: Store, config: RunConfig, name: str, variant: str, sources: dict[str, str], known: dict[str, ArtifactRef]
) -> PlannedStage:
    label = f"{name}:{variant}" if variant else name
    resources = _resources(config, name)
    if not all(source in known for source in sources.values()):
        return PlannedStage(name=label, key=None, cached=False, resources=resources)
    spec = StageSpec(
        stage=name,
        config=config.model_dump(mode="json"),
        inputs={key: known[source] for key, source in sources.items()},
        variant=variant,
        store_uri=store.uri,
    )
    key = key_of(spec)
    found = store.lookup(key)
    artifact = store.ref(found) if found else None
    return PlannedStage(name=label, key=key, cached=found is not None, artifact=artifact, resources=resources)


def _resources(config: RunConfig, name: str) -> str:
    """What a stage takes, in words; memory of weights, gradients and AdamW's two moments for a known model size."""
    if name == "sft":
        where = f"{config.sft.world_size} worker(s), " + (
            f"{config.sft.gpus_per_worker} GPU(s) each"
            if config.sft.gpus_per_worker
            else f"{config.sft.threads} threads"
        )
        return f"{where}, ZeRO-{config.sft.zero_stage}{_training_memory(config)}"
    if name == "evaluate":
        where = f"{config.engine.gpus} GPU(s)" if config.engine.gpus else f"{config.engine.threads} threads"
        return f"{config.engine.kind} engine, {where}, {config.engine.slots} slots"
    return "1 process"


def _training_memory(config: RunConfig) -> str:
    parameters = _PARAMETERS.get(config.model.source)
    if parameters is None:
        return ""
    weight_bytes = 4 if config.sft.dtype is Dtype.FP32 else 2
    states = parameters * (2 * weight_bytes + 8) if config.sft.lora is None else parameters * weight_bytes
    return f", about {states / 2**30:.1f} GiB of weights, gradients and optimiser states"
