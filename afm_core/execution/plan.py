"""What a run would do, without doing it: stages, keys as far as they are known, what is cached, and memory estimates.

A key needs its inputs' digests: behind the first stage that is not cached, keys are unknown and said to be so.
"""

from collections.abc import Iterable

from pydantic import BaseModel

from afm_core.config import Dtype, EngineConfig, RunConfig, TrainerConfig
from afm_core.execution.experts import expert_inputs
from afm_core.execution.preflight import open_run_store
from afm_core.execution.road import RoadStage, stages_until, teaching_stage
from afm_core.execution.stages import key_of, stage_named
from afm_core.store import ArtifactRef, StageSpec, Store

_ROAD: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("corpus", "", {}),
    ("tasks", "", {"corpus": "corpus"}),
    ("teach", "", {"corpus": "corpus", "tasks": "tasks"}),
    ("rollout", "", {"corpus": "corpus", "tasks": "tasks"}),
    ("curate", "", {"demonstrations": "teach", "tasks": "tasks"}),
    ("base", "", {}),
    ("sft", "", {"base": "base", "demonstrations": "curate"}),
    ("select", "", {"tasks": "tasks", "corpus": "corpus", "policy": "sft", "base": "base"}),
    ("rl", "", {"policy": "sft", "tasks": "tasks", "selected": "select", "corpus": "corpus"}),
    ("evaluate", "policy:rl", {"tasks": "tasks", "corpus": "corpus", "model": "rl"}),
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


def plan_run(config: RunConfig, refresh: Iterable[str] = (), until: RoadStage = RoadStage.RL) -> list[PlannedStage]:
    """The stages of a run in order. Raises ConfigError for what would refuse the run (see `open_run_store`), or an
    unknown stage in `refresh`.
    """
    anew = frozenset(stage_named(name).name for name in refresh)
    made = stages_until(until, config)
    store = open_run_store(config, create=False)
    known = expert_inputs(store, config)
    steps = []
    for name, variant, sources in _ROAD:
        if name not in made or ("rl" in sources.values() and "rl" not in made):
            continue
        if name == "curate":
            sources = {**sources, "demonstrations": teaching_stage(config)}
        if name == "sft":
            sources = {**sources, **{role: role for role in expert_inputs(store, config)}}
        if name == "base" and config.model.source == "tiny":
            sources = {"corpus": "corpus"}
        step = _plan_stage(store, config, name, variant, sources, known)
        if name in anew:
            step = step.model_copy(update={"cached": False, "artifact": None})
        if step.artifact is not None and not variant:
            known[name] = step.artifact
        steps.append(step)
    if "register" in made:
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
    """What a stage takes, in words, with the memory of weights and training states for a known model size."""
    match name:
        case "sft":
            return _trainer(config.sft, config)
        case "rl":
            workers = config.rollout.workers
            where = f"in {workers} worker(s)" if workers else "in the trainer's process"
            memory = _memory(config, _weight_bytes(config.engine.dtype) * max(workers, 1))
            engine = f"{_engine(config.engine)} {where}" + (f", about {memory} of weights" if memory else "")
            return f"{_trainer(config.rl, config)}; {engine}"
        case "rollout":
            team = config.team
            places = sum(one.concurrency for one in team.endpoints) + sum(
                one.concurrency * one.count for one in team.servers
            )
            started = "".join(f", {one.count} vLLM server(s) of {one.gpus} GPU(s) each" for one in team.servers)
            return f"1 process, {len(team.endpoints)} endpoint(s){started}, {places} requests at a time"
        case "select" if not (config.selection.samples or config.selection.closed_book_samples):
            return "1 process"
        case "select" | "evaluate":
            return _engine(config.engine)
        case _:
            return "1 process"


def _engine(engine: EngineConfig) -> str:
    where = f"{engine.gpus} GPU(s)" if engine.gpus else f"{engine.threads} threads"
    return f"{engine.kind} engine, {where}, {engine.slots} slots"


def _trainer(trainer: TrainerConfig, config: RunConfig) -> str:
    each = f"{trainer.gpus_per_worker} GPU(s) each" if trainer.gpus_per_worker else f"{trainer.threads} threads each"
    memory = _memory(config, _training_bytes(trainer))
    states = "weights" if trainer.lora else "weights, gradients and optimiser states"
    return f"{trainer.world_size} worker(s), {each}, ZeRO-{_zero_stage(trainer)}" + (
        f", about {memory} of {states} a worker" if memory else ""
    )


def _training_bytes(trainer: TrainerConfig) -> float:
    """Bytes a parameter in a worker: weights, fp32 gradients, AdamW's two moments, and fp32 masters beside bf16.

    What ZeRO shards is divided by the workers (S. Rajbhandari et al., "ZeRO", 2020, section 5). The states of LoRA
    adapters are left out: they are small.
    """
    zero, world = _zero_stage(trainer), trainer.world_size
    weights = _weight_bytes(trainer.dtype) / (world if zero >= 3 else 1)
    if trainer.lora is not None:
        return weights
    gradients = 4 / (world if zero >= 2 else 1)
    moments = (12 if trainer.dtype is Dtype.BF16 else 8) / (world if zero >= 1 else 1)
    return weights + gradients + moments


def _zero_stage(trainer: TrainerConfig) -> int:
    """As configured, but at least 1 for bf16, whose fp32 masters DeepSpeed has from there on."""
    return max(trainer.zero_stage, 1) if trainer.dtype is Dtype.BF16 else trainer.zero_stage


def _weight_bytes(dtype: Dtype) -> int:
    return 4 if dtype is Dtype.FP32 else 2


def _memory(config: RunConfig, bytes_per_parameter: float) -> str:
    """In words, empty for a model of unknown size."""
    parameters = _PARAMETERS.get(config.model.source)
    if not parameters:
        return ""
    mebibytes = parameters * bytes_per_parameter / 2**20
    return f"{mebibytes / 1024:.1f} GiB" if mebibytes >= 1024 else f"{mebibytes:.0f} MiB"
