"""What a run cost: seconds of work, tokens that models read in training and wrote, and money at the configured prices.

Only what this run made counts: a cached stage was paid for by another one. Tokens are what the stages report in their
metrics; a stage that reports none (evaluation measures means alone) adds none, so that tokens are a lower bound.
"""

from dataclasses import dataclass

from afm_core.config import ExecutionConfig
from afm_core.execution.runs import RunRecord, StageRecord

_SAMPLED = {"rl": "model_tokens"}
_TRAINED = {"sft": "tokens", "rl": "model_tokens"}
"""Stage -> the metric that counts its tokens."""


@dataclass(frozen=True)
class Spend:
    """Seconds of all stages together (beside one another they add up), tokens, and money in the prices' currency."""

    seconds: float
    tokens_sampled: int
    tokens_trained: int
    money: float


def spend_of(record: RunRecord) -> Spend:
    """The spend of a run so far, a stage in progress included."""
    prices = ExecutionConfig.model_validate(record.config.get("execution", {}))
    made = [stage for stage in record.stages if not stage.cached]
    seconds = sum(stage.seconds for stage in made) + sum(one.seconds for one in record.progress.values())
    sampled = sum(_count(stage, _SAMPLED) for stage in made)
    asked = sum(_number(stage, "cost") for stage in made)  # of endpoints, at the prices that they are configured with
    money = asked + seconds / 3600 * prices.price_per_hour + sampled / 1e6 * prices.price_per_million_tokens
    return Spend(round(seconds, 1), sampled, sum(_count(stage, _TRAINED) for stage in made), round(money, 4))


def _count(stage: StageRecord, metrics: dict[str, str]) -> int:
    return int(_number(stage, metrics.get(stage.name.partition(":")[0], "")))


def _number(stage: StageRecord, metric: str) -> float:
    value = stage.metrics.get(metric)
    return value if isinstance(value, int | float) else 0
