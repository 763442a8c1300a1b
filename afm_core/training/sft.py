"""Supervised fine-tuning, the loop.

For every optimizer step: take the plan's trajectories, pack them into micro-batches, sum the cross-entropy of the
learned tokens, divide by their number *in the whole step* (all micro-batches, all ranks), step AdamW. That division is
the only normalisation there is, so accumulation and world size do not change the loss or the gradient.

The loop knows nothing of Ray, DeepSpeed or files: it is given an engine that runs forward and backward, and is told
through `Hooks` what to do after a step. Its state is the step number and the history; the plan, the learning rate and
the random seed of a step are functions of the step, so a resumed run is the same run.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

from afm_core.config import SftConfig
from afm_core.training.errors import TrainingFailed, TrainingStopped
from afm_core.training.loss import PackedBatch, collate
from afm_core.training.plan import Batch, micro_batches, training_steps
from afm_core.training.rows import Row
from afm_core.training.schedule import learning_rate


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step, deterministic figures only. loss: mean over the step's supervised tokens, in nats."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    supervised_tokens: int
    tokens: int


@dataclass
class TrainingState:
    """Where training stands: optimizer steps done, and what each was."""

    history: list[StepRecord] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return len(self.history)

    def to_json(self) -> list[dict[str, float]]:
        """JSON values; `from_json` gives the same state back, to the last digit."""
        return [asdict(record) for record in self.history]

    @classmethod
    def from_json(cls, values: Sequence[dict[str, float]]) -> "TrainingState":
        """The state that `to_json` wrote."""
        return cls([StepRecord(**value) for value in values])  # type: ignore[arg-type]


class TrainingEngine(Protocol):
    """What runs forward and backward on this rank and steps on all of them."""

    rank: int
    world_size: int

    def seed(self, seed: int) -> None:
        """Seed this rank's random numbers (dropout)."""
        ...

    def accumulate(self, batch: PackedBatch, weight: float) -> list[float]:
        """Add the gradient of weight * (summed loss of the batch); returns the summed loss, and its figures if any."""
        ...

    def step(self, learning_rate: float) -> float:
        """Sum gradients over the ranks, clip, update, forget them; returns the norm before clipping."""
        ...

    def total(self, values: Sequence[float]) -> list[float]:
        """Element-wise sums over all ranks (a collective call)."""
        ...


@dataclass
class Hooks:
    """What happens around the loop. `after_step` gets the seconds the step took; `checkpoint` is collective."""

    after_step: Callable[[StepRecord, float], None] = lambda record, seconds: None
    checkpoint: Callable[[TrainingState], None] = lambda state: None
    should_stop: Callable[[], bool] = lambda: False


def total_steps(rows: int, config: SftConfig) -> int:
    """Optimizer steps of a whole run over that many rows."""
    return len(training_steps(rows, config.batch_trajectories, config.epochs, config.seed))


def train(
    engine: TrainingEngine, rows: Sequence[Row], config: SftConfig, state: TrainingState, hooks: Hooks
) -> TrainingState:
    """Train from `state` to the end of the plan; returns the final state. All ranks call it with the same rows.

    Raises:
        TrainingStopped: `should_stop` said so on any rank; a checkpoint was saved.
        TrainingFailed: the loss is not finite.
    """
    steps = training_steps(len(rows), config.batch_trajectories, config.epochs, config.seed)
    lengths = [len(row.ids) for row in rows]
    while state.step < len(steps):
        began = time.monotonic()
        step = state.step
        batches = micro_batches(steps[step], lengths, config.micro_batch_tokens, engine.world_size)[engine.rank]
        record, stop = _one_step(engine, rows, steps[step], batches, len(steps), step, config, hooks)
        state.history.append(record)
        hooks.after_step(record, time.monotonic() - began)
        last = state.step == len(steps)
        if not last and (stop or state.step % config.checkpoint_every == 0):
            hooks.checkpoint(state)
        if stop and not last:
            raise TrainingStopped(f"stopped after step {state.step} of {len(steps)}")
    return state


def _one_step(
    engine: TrainingEngine,
    rows: Sequence[Row],
    chosen: Sequence[int],
    batches: Sequence[Batch],
    steps: int,
    step: int,
    config: SftConfig,
    hooks: Hooks,
) -> tuple[StepRecord, bool]:
    supervised = sum(rows[row].supervised for row in chosen)
    assert supervised > 0, f"step {step} has no supervised token"
    engine.seed((config.seed * 1_000_003 + step) * 4096 + engine.rank)
    loss_sum = 0.0
    for batch in batches:
        weight = 1.0 / supervised if batch.counted else 0.0
        summed = engine.accumulate(collate([rows[row] for row in batch.rows]), weight)[0]
        loss_sum += summed if batch.counted else 0.0
    rate = learning_rate(step, steps, config)
    norm = engine.step(rate)
    total_loss, stop = engine.total([loss_sum, float(hooks.should_stop())])
    loss = total_loss / supervised
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise TrainingFailed(
            f"the loss of step {step + 1} is {loss} (gradient norm {norm}): lower sft.learning_rate or check the data"
        )
    tokens = sum(len(rows[row].ids) for row in chosen)
    return StepRecord(step + 1, loss, rate, norm, supervised, tokens), stop > 0
