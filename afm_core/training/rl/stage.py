"""The stage `rl`: from a policy, tasks and a corpus to a better policy, and every rollout that made it.

The artifact is a model directory (the best model on the dev tasks) with rl.json, the deterministic account of the run,
and below sidecar/ what is kept but not part of its identity: each step's rollouts with ids, log-probabilities and
advantages, and timed metrics.
"""

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afm_core.config import ConfigError, Dtype, EngineKind, RlConfig, RolloutConfig, RunConfig, key_fields
from afm_core.store import StageContext, StageInterrupted, StageResult
from afm_core.training.channel import Channel
from afm_core.training.checkpoints import check_disk_space, checkpoint_bytes, checkpoint_name
from afm_core.training.errors import TrainingWorkerDied
from afm_core.training.export import PROVENANCE, link_or_copy, write_json
from afm_core.training.keeper import CheckpointKeeper
from afm_core.training.models import provenance_of
from afm_core.training.rl.watchdog import STACKS, explained
from afm_core.training.stages import parameter_count

_LOG = logging.getLogger(__name__)

ACCOUNT = "rl.json"
ROLLOUTS = "rollouts"
_CURVES = (
    "loss",
    "reward",
    "entropy",
    "kl_sampler",
    "clip_share",
    "gradient_norm",
    "learning_rate",
    "mean_tool_calls",
    "mean_model_tokens",
    "staleness",
    "live_groups",
    "probe_difference",
    "importance_weight",
)


def rl(context: StageContext) -> StageResult:
    """Stage `rl`: trains the policy by reinforcement learning with tools, resuming from the newest sealed checkpoint.

    Raises:
        ConfigError: an engine that cannot take weights, too little disk, too small a cluster.
        StageInterrupted: told to stop; a checkpoint is sealed.
        TrainingWorkerDied, TrainingFailed: see afm_core.training.launch.
    """
    from afm_core.training.launch import connected_ray, follow

    config = RunConfig.model_validate(context.spec.config)
    refuse_impossible(config)
    policy = context.inputs["policy"]
    _check_space(context, policy.path, config.rl)
    channel = Channel(context.scratch / "training")
    channel.create()
    keeper = CheckpointKeeper(context, channel, config.rl.keep_last)
    job = {
        "config": context.spec.config,
        "policy": str(policy.path),
        "version": policy.ref.digest,
        "tasks": str(context.inputs["tasks"].path / "tasks.parquet"),
        "selected": str(context.inputs["selected"].path / "tasks.parquet"),
        "documents": str(context.inputs["corpus"].path / "documents.parquet"),
        "directory": str(channel.directory),
        "resume": keeper.newest(lambda progress: float(progress["steps"][-1]["loss"])),
        "provenance": _provenance(context),
    }
    sink = EventSink(context, keeper, config.rl.steps)
    with connected_ray(config.rl, config.rollout.workers * config.engine.threads):
        try:
            follow(
                "afm_core.training.rl.worker", job, config.rl, channel, sink, context.stopping, context.scratch / "ray"
            )
        except TrainingWorkerDied as error:
            raise explained(error, channel.directory / STACKS) from error
    if sink.finished is None:
        raise StageInterrupted(sink.stopped or "told to stop before training started")
    return _write(context, sink.finished)


def refuse_impossible(config: RunConfig) -> None:
    """Settings that cannot train. Raises ConfigError."""
    engine, rollout = config.engine, config.rollout
    if engine.kind is EngineKind.OPENAI:
        raise ConfigError(
            "rl cannot use engine.kind=openai: an endpoint takes no new weights; use transformers or vllm"
        )
    if engine.kind is EngineKind.VLLM and not rollout.workers:
        raise ConfigError(
            "engine.kind=vllm needs rollout.workers of at least 1 for rl: vLLM and the trainer each want a process"
        )
    if engine.max_length > config.rl.max_tokens:
        _LOG.warning(
            "episodes may have %d tokens; longer than rl.max_tokens = %d is masked",
            engine.max_length,
            config.rl.max_tokens,
        )


class EventSink:
    """What the stage does with the workers' events: progress, metrics, checkpoints, rollouts, the best model."""

    def __init__(self, context: StageContext, keeper: CheckpointKeeper, steps: int) -> None:
        self._context = context
        self._keeper = keeper
        self._total = steps
        self._done = 0
        self._metrics = context.output / "sidecar" / "metrics.jsonl"
        self._metrics.parent.mkdir(parents=True, exist_ok=True)
        self.finished: Mapping[str, Any] | None = None
        self.stopped = ""

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Handle one event; see afm_core.training.rl.worker for what is sent."""
        match event["kind"]:
            case "started":
                self._done = event["step"]
                self._progress("model loaded")
            case "progress":
                self._progress(event["message"])
            case "step":
                self._step(event)
            case "evaluated":
                self._evaluated(event["evaluation"])
            case "best":
                self._seal(f"best/{checkpoint_name(event['step'])}", Path(event["path"]))
            case "checkpoint":
                self._keeper.take(event["name"], event["loss"])
                self._forget_worse(event["best"])
            case "stopped":
                self.stopped = event["message"]
            case "finished":
                self.finished = event

    def _step(self, event: Mapping[str, Any]) -> None:
        record = event["record"]
        self._seal(f"{ROLLOUTS}/{checkpoint_name(record['step'])}", Path(event["rollouts"]))
        self._done = record["step"]
        self._progress(
            f"reward {record['reward']:.3f}, {record['live_groups']}/{record['groups']} groups, "
            f"loss {record['loss']:.4f}, {event['pss_bytes'] / 2**30:.2f} GiB"
        )
        figures = {f"rl/{name}": float(record[name]) for name in _CURVES}
        counts = {f"rl/status/{name}": float(count) for name, count in record["status"].items()}
        masked = {f"rl/masked/{name}": float(count) for name, count in record["masked"].items()}
        self._context.log_metrics(
            {**figures, **counts, **masked, "rl/pss_bytes": float(event["pss_bytes"])}, self._done
        )
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**record, "pss_bytes": event["pss_bytes"], "seconds": event["seconds"]}) + "\n")

    def _evaluated(self, evaluation: Mapping[str, Any]) -> None:
        self._progress(f"dev accuracy {evaluation['accuracy']:.1%}" if evaluation["accuracy"] is not None else "dev")
        if evaluation["accuracy"] is not None:
            self._context.log_metrics({"rl/dev_accuracy": evaluation["accuracy"]}, evaluation["step"])

    def _seal(self, name: str, directory: Path) -> None:
        self._context.seal(name, directory)
        shutil.rmtree(directory)

    def _forget_worse(self, best: int) -> None:
        """Once a checkpoint that knows the best is sealed, no resumed run can need an earlier best."""
        for name in self._context.sealed("best/"):
            if name < f"best/{checkpoint_name(best)}":
                self._context.unseal(name)

    def _progress(self, message: str) -> None:
        self._context.progress(self._done, self._total, message)


def _write(context: StageContext, finished: Mapping[str, Any]) -> StageResult:
    """The artifact: best model, account, and every step's rollouts."""
    state, registered = finished["state"], finished["registered_step"]
    if registered:
        _copy(context.sealed("best/")[f"best/{checkpoint_name(registered)}"], context.output)
    else:
        _copy(context.inputs["policy"].path, context.output, leave=("sidecar", "losses.json", ACCOUNT, PROVENANCE))
        write_json(context.output / PROVENANCE, _provenance(context))
    write_json(
        context.output / ACCOUNT,
        {name: state[name] for name in ("end", "warnings", "evaluations", "steps")} | {"registered_step": registered},
    )
    for name, directory in context.sealed(f"{ROLLOUTS}/").items():
        _copy(directory, context.output / "sidecar" / name)
    return StageResult(metrics=_summary(state, registered))


def _copy(source: Path, target: Path, leave: tuple[str, ...] = ()) -> None:
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        relative = file.relative_to(source)
        if relative.parts[0] not in leave:
            link_or_copy(file, target / relative)


def _summary(state: Mapping[str, Any], registered: int) -> dict[str, float | int | str | bool | None]:
    steps, evaluations = state["steps"], state["evaluations"]
    by_step = {one["step"]: one["accuracy"] for one in evaluations}
    return {
        "end": str(state["end"]),
        "steps": len(steps),
        "registered_step": registered,
        "dev_accuracy_before": by_step.get(0),
        "dev_accuracy": by_step.get(registered),
        "first_reward": steps[0]["reward"] if steps else None,
        "last_reward": steps[-1]["reward"] if steps else None,
        "trajectories": sum(one["trajectories"] for one in steps),
        "model_tokens": sum(one["model_tokens"] for one in steps),
    }


def _provenance(context: StageContext) -> dict[str, Any]:
    policy = context.inputs["policy"]
    return {
        "method": "rl",
        "base": provenance_of(policy.path),
        "policy_digest": policy.ref.digest,
        "tasks_digest": context.inputs["selected"].ref.digest,
        "rl": key_fields(context.section(RlConfig)),
        "rollout": key_fields(context.section(RolloutConfig)),
    }


def _check_space(context: StageContext, policy: Path, config: RlConfig) -> None:
    parameters = parameter_count(policy)
    if not parameters:
        raise ConfigError(f"the policy at {policy} has no safetensors weights")
    width = 2 if config.dtype is Dtype.BF16 else 4
    checkpoint = checkpoint_bytes(parameters, parameters, width)
    check_disk_space((context.scratch, context.output), checkpoint, config.keep_last, 3 * parameters * width)
