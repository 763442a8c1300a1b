"""The stages `base` and `sft`: from a source or a corpus to a base model, from demonstrations to a trained one."""

import json
import logging
import shutil
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from afm_core.config import AgentConfig, ConfigError, Dtype, ModelConfig, SftConfig, key_fields
from afm_core.data import documents_from_table, trajectories_from_table
from afm_core.moe.selection import selection_of
from afm_core.store import StageContext, StageInterrupted, StageResult, read_table
from afm_core.training.channel import Channel
from afm_core.training.checkpoints import check_disk_space, checkpoint_bytes
from afm_core.training.export import PROVENANCE, link_or_copy, write_json
from afm_core.training.keeper import CheckpointKeeper
from afm_core.training.models import TINY, provenance_of, resolve_model
from afm_core.training.rows import Prepared, prepare, write_rows

_LOG = logging.getLogger(__name__)

_BIG = 1_000_000
"""Bytes from which a base model's file is hard-linked, not copied."""

LOSSES = "losses.json"


def base_model(context: StageContext) -> StageResult:
    """Stage `base`: the base model as an artifact. `tiny` is made from the corpus input, others are fetched."""
    config = context.section(ModelConfig)
    if config.source == TINY:
        from afm_core.training.tiny import make_tiny

        table = read_table(context.inputs["corpus"].path / "documents.parquet")
        parameters = make_tiny(documents_from_table(table), context.output, config.seed)
        return StageResult(metrics={"parameters": parameters})
    context.progress(0, 1, f"fetching {config.source}")
    directory = resolve_model(config.source)
    for file in sorted(path for path in directory.rglob("*") if path.is_file() and not path.name.startswith(".")):
        target = context.output / file.relative_to(directory)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".safetensors" and file.stat().st_size > _BIG and not file.is_symlink():
            link_or_copy(file, target)
        else:
            shutil.copyfile(file, target)
    if not (context.output / PROVENANCE).exists():
        write_json(context.output / PROVENANCE, {"name": config.source, "source": config.source})
    context.progress(1, 1, "")
    return StageResult(metrics={"parameters": parameter_count(context.output)})


def sft(context: StageContext) -> StageResult:
    """Stage `sft`: trains the base model on the demonstrations with Ray Train and DeepSpeed.

    Resumes from the newest sealed checkpoint; at equal world size, threads and machine the result is the same bytes.

    Raises:
        ConfigError: nothing to train on, too little disk, too small a cluster.
        StageInterrupted: told to stop; a checkpoint is sealed.
        TrainingWorkerDied, TrainingFailed: see afm_core.training.launch.
    """
    from afm_core.training.launch import connected_ray, follow

    config, agent = context.section(SftConfig), context.section(AgentConfig)
    base = context.inputs["base"].path
    _check_space(context, base, config)
    prepared = _prepare(context, base, agent, config)
    channel = Channel(context.scratch / "training")
    channel.create()
    write_rows(prepared.rows, channel.rows)
    keeper = CheckpointKeeper(context, channel, config.keep_last, config.keep_best)
    job = {
        "config": config.model_dump(mode="json"),
        "base": str(base),
        "directory": str(channel.directory),
        "resume": keeper.newest(lambda history: float(history[-1]["loss"])),
        "provenance": _provenance(context, config),
        "experts": _experts(context, config),
    }
    sink = EventSink(context, keeper, prepared)
    with connected_ray(config):
        follow("afm_core.training.worker", job, config, channel, sink, context.stopping, context.scratch / "ray")
    if sink.history is None:
        raise StageInterrupted(sink.stopped or "told to stop before training started")
    _collect_model(channel.model, context.output)
    losses = [
        {key: record[key] for key in ("step", "loss", "learning_rate", "supervised_tokens")} for record in sink.history
    ]
    write_json(context.output / LOSSES, losses)
    return StageResult(metrics={**_summary(sink.history, prepared), **sink.drift})


class EventSink:
    """What the stage does with the workers' events: progress, metrics, checkpoints, the end."""

    def __init__(self, context: StageContext, keeper: CheckpointKeeper, prepared: Prepared) -> None:
        self._context = context
        self._keeper = keeper
        self._metrics = context.output / "sidecar" / "metrics.jsonl"
        self._metrics.parent.mkdir(parents=True, exist_ok=True)
        self._steps = 0
        self.history: list[dict[str, Any]] | None = None
        self.stopped = ""
        self.drift: dict[str, float] = {}

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Handle one event; see afm_core.training.worker for what is sent."""
        match event["kind"]:
            case "started":
                self._steps = event["steps"]
                self._context.progress(event["step"], self._steps, "model loaded")
            case "step":
                self._step(event["record"], event["seconds"], event["pss_bytes"])
            case "checkpoint":
                self._keeper.take(event["name"], event["loss"])
            case "stopped":
                self.stopped = event["message"]
            case "finished":
                self.history = event["history"]
                self._routing(event["routing_overlap"])

    def _routing(self, overlap: list[float]) -> None:
        self.drift = {f"routing_overlap/layer_{place}": value for place, value in enumerate(overlap)}
        if self.drift:
            self._context.log_metrics(self.drift, self._steps)

    def _step(self, record: Mapping[str, Any], seconds: float, pss: int) -> None:
        speed = record["tokens"] / seconds
        message = f"loss {record['loss']:.4f}, {speed:.0f} tokens/s, {pss / 2**30:.2f} GiB"
        self._context.progress(record["step"], self._steps, message)
        values = {f"train/{key}": float(record[key]) for key in ("loss", "learning_rate", "gradient_norm")}
        timed = {"train/tokens_per_second": speed, "train/pss_bytes": float(pss)}
        self._context.log_metrics({**values, **timed}, record["step"])
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**record, "seconds": seconds, "pss_bytes": pss}) + "\n")


def parameter_count(directory: Path) -> int:
    """Parameters of a model directory's safetensors files, tied weights once."""
    from math import prod

    from safetensors import safe_open

    total = 0
    for file in directory.glob("*.safetensors"):
        with safe_open(file, framework="numpy") as tensors:
            total += sum(prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    return total


def _prepare(context: StageContext, base: Path, agent: AgentConfig, config: SftConfig) -> Prepared:
    """In a process of its own: what a tokenizer imports would stay in this one's memory beside the training."""
    demonstrations = context.inputs["demonstrations"].path / "trajectories.parquet"
    level = logging.getLogger().getEffectiveLevel()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_log_to_stderr, initargs=(level,)) as pool:
        return pool.submit(_prepare_file, demonstrations, base, agent, config).result()


def _prepare_file(demonstrations: Path, base: Path, agent: AgentConfig, config: SftConfig) -> Prepared:
    from transformers import AutoTokenizer

    trajectories = trajectories_from_table(read_table(demonstrations))
    return prepare(trajectories, AutoTokenizer.from_pretrained(base), agent, config)


def _log_to_stderr(level: int) -> None:
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)


def _check_space(context: StageContext, base: Path, config: SftConfig) -> None:
    parameters = parameter_count(base)
    if not parameters:
        raise ConfigError(f"the base model at {base} has no safetensors weights")
    width = 2 if config.dtype is Dtype.BF16 else 4
    trainable = parameters if config.lora is None else _lora_estimate(base, config)
    checkpoint = checkpoint_bytes(parameters, trainable, width)
    check_disk_space(
        (context.scratch, context.output), checkpoint, config.keep_last + config.keep_best, parameters * width
    )


def _lora_estimate(base: Path, config: SftConfig) -> int:
    """An upper bound of the adapters' parameters: every target of every layer at the widest layer's width."""
    assert config.lora is not None
    shape = json.loads((base / "config.json").read_text())
    widest = max(shape.get("intermediate_size", 0), shape.get("hidden_size", 0))
    return int(2 * config.lora.rank * widest * len(config.lora.targets) * shape.get("num_hidden_layers", 1))


def _experts(context: StageContext, config: SftConfig) -> dict[str, Any] | None:
    """The selection of the diagnosis that is trained; None: the whole model is."""
    if config.experts is None:
        return None
    return selection_of(context.inputs["diagnosis"].path, config.experts.domain, config.experts.score).model_dump()


def _provenance(context: StageContext, config: SftConfig) -> dict[str, Any]:
    inputs = context.inputs
    return {
        "method": "sft",
        "base": provenance_of(inputs["base"].path),
        "base_digest": inputs["base"].ref.digest,
        "demonstrations_digest": inputs["demonstrations"].ref.digest,
        "sft": key_fields(config),
        **({"diagnosis_digest": inputs["diagnosis"].ref.digest} if config.experts is not None else {}),
    }


def _collect_model(source: Path, output: Path) -> None:
    for file in sorted(source.iterdir()):
        shutil.move(file, output / file.name)


def _summary(history: list[dict[str, Any]], prepared: Prepared) -> dict[str, float | int | str | bool | None]:
    last = history[-max(1, len(history) // 10) :]
    supervised = sum(record["supervised_tokens"] for record in last)
    return {
        "steps": len(history),
        "trajectories": len(prepared.rows),
        "too_long": prepared.too_long,
        "supervised_share": prepared.supervised_share,
        "first_loss": history[0]["loss"],
        "final_loss": sum(record["loss"] * record["supervised_tokens"] for record in last) / supervised,
        "tokens": sum(record["tokens"] for record in history),
        "supervised_tokens": sum(record["supervised_tokens"] for record in history),
    }
