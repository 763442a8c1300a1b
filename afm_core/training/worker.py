"""What one training process does: load, resume, train, export. Ray Train starts it once a rank.

torch.distributed is initialised by then. The function takes and returns plain values, so that it can also be run in a
process without Ray (tests do).
"""

import logging
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from afm_core.config import SftConfig
from afm_core.moe.expert_training import merged, published, train_only
from afm_core.moe.selection import ExpertSelection
from afm_core.training.channel import Channel
from afm_core.training.checkpoints import read_progress, write_checkpoint
from afm_core.training.deepspeed_engine import DeepSpeedEngine, load_for_training
from afm_core.training.drift import RoutingDrift
from afm_core.training.errors import TrainingStopped
from afm_core.training.export import save_model
from afm_core.training.lora import merge
from afm_core.training.loss import SupervisedLoss
from afm_core.training.ranks import barrier, memory, wait_for_sealing
from afm_core.training.rows import read_rows
from afm_core.training.sft import Hooks, StepRecord, TrainingState, total_steps, train


@dataclass(frozen=True)
class Job:
    """A training job. Paths as text: base model, channel directory, checkpoint to resume from (or none).

    experts: an ExpertSelection as JSON values, if only those experts are trained.
    """

    config: dict[str, Any]
    base: str
    directory: str
    resume: str | None
    provenance: dict[str, Any]
    experts: dict[str, Any] | None = None

    @property
    def selection(self) -> ExpertSelection | None:
        """The experts that are trained, if not all of the model is."""
        return None if self.experts is None else ExpertSelection.model_validate(self.experts)

    def to_json(self) -> dict[str, Any]:
        """JSON values, for Ray Train's `train_loop_config`."""
        return asdict(self)


def run(values: dict[str, Any]) -> None:
    """Train the job on this rank. Rank 0 reports through the channel; errors propagate to Ray Train."""
    job = Job(**values)
    config = SftConfig.model_validate(job.config)
    channel = Channel(Path(job.directory))
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(config.threads)
    began = time.monotonic()
    rows = read_rows(channel.rows)
    model = load_for_training(Path(job.base), config)
    if job.selection is not None:
        assert config.experts is not None
        train_only(model, job.selection, router=config.experts.router)
    loss = SupervisedLoss(model)
    drift = RoutingDrift(model, rows, config.experts)
    engine = DeepSpeedEngine(loss, config)
    state = _resume(engine, job)
    if engine.rank == 0:
        steps = total_steps(len(rows), config)
        channel.send(
            "started", step=state.step, steps=steps, seconds=time.monotonic() - began, pid=os.getpid(), **memory()
        )
    try:
        train(engine, rows, config, state, _hooks(engine, channel))
    except TrainingStopped as stopped:
        _report(engine, channel, "stopped", message=str(stopped))
        return
    _export(engine, config, job, channel)
    _report(engine, channel, "finished", history=state.to_json(), routing_overlap=drift.overlap(), **memory())


def _report(engine: DeepSpeedEngine, channel: Channel, kind: str, **values: Any) -> None:
    if engine.rank == 0:
        channel.send(kind, **values)


def _resume(engine: DeepSpeedEngine, job: Job) -> TrainingState:
    if job.resume is None:
        return TrainingState()
    checkpoint = Path(job.resume)
    engine.load(checkpoint)
    return TrainingState.from_json(read_progress(checkpoint))


def _hooks(engine: DeepSpeedEngine, channel: Channel) -> Hooks:
    def after_step(record: StepRecord, seconds: float) -> None:
        _report(engine, channel, "step", record=asdict(record), seconds=seconds, **memory())

    def checkpoint(state: TrainingState) -> None:
        wait_for_sealing(engine.rank, channel)
        path = write_checkpoint(channel.checkpoints, state.step, state.to_json(), engine.save, engine.rank, barrier)
        _report(engine, channel, "checkpoint", step=state.step, name=path.name, loss=state.history[-1].loss)

    return Hooks(after_step, checkpoint, channel.stop_asked)


def _export(engine: DeepSpeedEngine, config: SftConfig, job: Job, channel: Channel) -> None:
    state = engine.model_state()
    if state is not None:
        if config.lora is not None:
            state = merge(state, config.lora)
        if job.selection is not None:
            state = merged(state, job.selection)
        if any(".experts." in name for name in state):
            state = published(engine.model, state)
        dtype = "bfloat16" if config.dtype == "bf16" else "float32"
        save_model(state, Path(job.base), channel.model, job.provenance, dtype)
    barrier()
