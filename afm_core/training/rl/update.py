"""One step's experience made into optimizer steps. All ranks call `update` with the same rows and get the same record.

Departs from the textbook in what is counted. Groups whose advantages are all 0 say nothing, so they are left out
before anything is counted: a batch with half of its groups dead has the gradient of the live half alone, and not half
of it (with rl.kl_coefficient or rl.entropy_coefficient dead groups feel those neither). The same holds for
trajectories without a trained token. An optimizer step without a single advantage is not made at all, since AdamW's
momentum would move the weights without a reason.

Every mini-batch's loss is a sum weighted by counts of the whole mini-batch, over micro-batches and ranks.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Protocol

from torch import Tensor

from afm_core.config import Correction, RlConfig
from afm_core.training.errors import TrainingFailed
from afm_core.training.loss import learned_places
from afm_core.training.plan import micro_batches
from afm_core.training.rl.experience import ExperienceRow
from afm_core.training.rl.losses import aggregation_weights
from afm_core.training.rl.policy import STATISTICS, PolicyBatch, collate
from afm_core.training.schedule import constant_learning_rate
from afm_core.training.sft import TrainingEngine

Reference = Callable[[PolicyBatch], Tensor]
"""Gives the reference policy's log-probabilities of a batch's supervised tokens, on the CPU."""


class PolicyEngine(TrainingEngine, Protocol):
    """A training engine whose module is a PolicyLoss."""

    def score(self, batch: PolicyBatch) -> Tensor:
        """Log-probabilities of the supervised tokens, [S], on the CPU; no gradient, no dropout."""
        ...


@dataclass(frozen=True)
class UpdateRecord:
    """What a step's update did; deterministic figures only.

    loss, gradient_norm: means over the `updates` optimizer steps that were made. tokens, model_tokens: of the
    trajectories that were trained. The other figures are means over trained model tokens: entropy (nats), kl_sampler
    (k3 of sampler to policy), kl_reference (0 without rl.kl_coefficient), clip_share (tokens whose ratio was bounded),
    importance_weight, logprob_difference (|trainer - sampler|, nats). skipped: there was nothing to train, no
    optimizer step was made and everything else is 0.
    """

    step: int
    loss: float = 0.0
    learning_rate: float = 0.0
    gradient_norm: float = 0.0
    tokens: int = 0
    model_tokens: int = 0
    entropy: float = 0.0
    kl_sampler: float = 0.0
    kl_reference: float = 0.0
    clip_share: float = 0.0
    importance_weight: float = 0.0
    logprob_difference: float = 0.0
    updates: int = 0
    skipped: bool = False


@dataclass(frozen=True)
class _Part:
    """A micro-batch of this rank, and whether it counts (else it only keeps the ranks in step)."""

    batch: PolicyBatch
    counted: bool


def update(
    engine: PolicyEngine,
    rows: Sequence[ExperienceRow],
    config: RlConfig,
    step: int,
    reference: Reference | None = None,
) -> UpdateRecord:
    """Train on a step's rows; `step` counts from 1. A collective call with the same rows on every rank.

    Raises:
        TrainingFailed: the loss or the gradient is not finite (the loss is checked before the weights are touched).
        ValueError: a row is longer than a micro-batch may be, or rl.kl_coefficient has no reference.
    """
    assert step >= 1, f"steps count from 1, not {step}"
    if config.kl_coefficient and reference is None:
        raise ValueError("rl.kl_coefficient > 0 needs the reference policy: give `update` a reference")
    chosen = mini_batches(rows, config, step)
    if not chosen:
        return UpdateRecord(step, skipped=True)
    parts = [_parts(engine, [rows[index] for index in mini], config, reference) for mini in chosen]
    if config.updates > 1 and config.correction is not Correction.NONE:
        # All before the first update, with the very packing that is trained.
        parts = [[replace(one, batch=_with_old(engine, one.batch)) for one in mini] for mini in parts]
    rate = constant_learning_rate(step - 1, config)
    sums, norms = [0.0] * len(STATISTICS), []
    for number, mini in enumerate(parts):
        engine.seed(((config.seed * 1_000_003 + step) * 1_009 + number) * 4096 + engine.rank)
        values, norm = _optimizer_step(engine, mini, rate, f"step {step}, update {number + 1} of {len(parts)}")
        sums = [total + value for total, value in zip(sums, values, strict=True)]
        norms.append(norm)
    trained = [rows[index] for mini in chosen for index in mini]
    return _record(step, rate, sums, norms, trained)


def score(engine: PolicyEngine, rows: Sequence[ExperienceRow], config: RlConfig) -> list[tuple[float, ...]]:
    """Log-probabilities (nats, at config.temperature) of every row's model tokens, in their order; on all ranks.

    A row's first token has no context and no entry. A collective call with the same rows on every rank; packing may
    move a value by rounding only. Raises ValueError if a row is longer than a micro-batch may be.
    """
    if not rows:
        return []
    ends = [0, *accumulate(row.supervised for row in rows)]
    flat = [0.0] * ends[-1]
    batches = micro_batches(
        range(len(rows)), [len(row.ids) for row in rows], config.micro_batch_tokens, engine.world_size
    )
    for batch in batches[engine.rank]:
        packed = collate([rows[index] for index in batch.rows], [0.0] * len(batch.rows), config.temperature)
        values = iter(engine.score(packed).tolist())
        for index in batch.rows if batch.counted else ():
            flat[ends[index] : ends[index + 1]] = [next(values) for _ in range(rows[index].supervised)]
    flat = engine.total(flat)
    return [tuple(flat[start:end]) for start, end in pairwise(ends)]


def mini_batches(rows: Sequence[ExperienceRow], config: RlConfig, step: int) -> list[list[int]]:
    """Row indices of each optimizer step: rows of live groups, shuffled by seed and step, spread evenly.

    A group is live if any trained token of any of its rows has an advantage. At most config.updates lists, none of
    them without an advantage.
    """
    signals = [any(row.advantages[place] for place in learned_places(row)) for row in rows]
    live = {row.group for row, signal in zip(rows, signals, strict=True) if signal}
    order = [index for index, row in enumerate(rows) if row.group in live and row.supervised]
    random.Random(f"{config.seed}:update:{step}").shuffle(order)
    count = min(config.updates, len(order))
    spread = [sorted(order[number::count]) for number in range(count)]
    return [mini for mini in spread if any(signals[index] for index in mini)]


def _parts(
    engine: PolicyEngine, rows: Sequence[ExperienceRow], config: RlConfig, reference: Reference | None
) -> list[_Part]:
    """This rank's micro-batches of a mini-batch, weighted by the counts of the whole of it."""
    tokens = [row.supervised for row in rows]
    weights = aggregation_weights(tokens, config.aggregation, sum(tokens), len(rows), config.max_tokens)
    lengths = [len(row.ids) for row in rows]
    parts = []
    for planned in micro_batches(range(len(rows)), lengths, config.micro_batch_tokens, engine.world_size)[engine.rank]:
        members, own = [rows[index] for index in planned.rows], [weights[index] for index in planned.rows]
        batch = collate(members, own, config.temperature)
        if config.kl_coefficient and reference is not None:
            batch = replace(batch, reference_S=reference(batch))
        parts.append(_Part(batch, planned.counted))
    return parts


def _with_old(engine: PolicyEngine, batch: PolicyBatch) -> PolicyBatch:
    return replace(batch, old_S=engine.score(batch))


def _optimizer_step(engine: PolicyEngine, parts: Sequence[_Part], rate: float, where: str) -> tuple[list[float], float]:
    """STATISTICS summed over all ranks, and the gradient norm."""
    sums = [0.0] * len(STATISTICS)
    for part in parts:
        values = engine.accumulate(part.batch, 1.0 if part.counted else 0.0)
        if part.counted:
            sums = [total + value for total, value in zip(sums, values, strict=True)]
    sums = engine.total(sums)
    _refuse_infinite("loss", sums[0], where)
    norm = engine.step(rate)
    _refuse_infinite("gradient norm", norm, where)
    return sums, norm


def _refuse_infinite(name: str, value: float, where: str) -> None:
    if not math.isfinite(value):
        raise TrainingFailed(
            f"the {name} of RL {where} is {value}: lower rl.learning_rate, or look at the step's experience.parquet "
            "for log-probabilities and advantages that are not finite"
        )


def _record(
    step: int, rate: float, sums: Sequence[float], norms: Sequence[float], trained: Sequence[ExperienceRow]
) -> UpdateRecord:
    model_tokens = sum(row.supervised for row in trained)
    means = {name: value / model_tokens for name, value in zip(STATISTICS, sums, strict=True)}
    return UpdateRecord(
        step=step,
        loss=sums[0] / len(norms),
        learning_rate=rate,
        gradient_norm=sum(norms) / len(norms),
        tokens=sum(len(row.ids) for row in trained),
        model_tokens=model_tokens,
        entropy=means["entropy"],
        kl_sampler=means["kl_sampler"],
        kl_reference=means["kl_reference"],
        clip_share=means["clip_share"],
        importance_weight=means["importance_weight"],
        logprob_difference=means["logprob_difference"],
        updates=len(norms),
    )
