"""What is remembered of a run of RL: one record a step, the evaluations, where the prompts stand, how it ended.

Everything here is deterministic (no seconds, no hosts), is written into every checkpoint, and becomes the artifact's
rl.json.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

from afm_core.data import Trajectory
from afm_core.evaluation.metrics import wilson_interval
from afm_core.training.rl.eligibility import finite_reward


class End(StrEnum):
    """Why RL ended."""

    COMPLETED = "completed"
    """All steps were made."""
    NO_SIGNAL = "no_signal"
    """No group of a step had members with different rewards, however often prompts were drawn."""
    EARLY_STOP = "early_stop"
    """`rl.patience` evaluations brought no new best."""


@dataclass(frozen=True)
class Evaluation:
    """Greedy accuracy on the dev tasks after `step` updates (0: before the first)."""

    step: int
    accuracy: float | None
    n: int
    scored: int
    interval: tuple[float, float]
    mean_tool_calls: float
    mean_sampled_tokens: float


@dataclass
class RlState:
    """Where RL stands. The number of updates made is the number of step records."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    cursor: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    end: End | None = None

    @property
    def step(self) -> int:
        """Updates made."""
        return len(self.steps)

    @property
    def best(self) -> int:
        """The step of the best model on dev; of equals the latest. The last step where there is no dev task."""
        scored = [(one.accuracy, one.step) for one in self.evaluations if one.accuracy is not None]
        return max(scored)[1] if scored else self.step

    def evaluated(self, step: int) -> bool:
        """Whether the model after `step` updates was evaluated."""
        return any(one.step == step for one in self.evaluations)

    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` gives the same state back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The state that `to_json` wrote. Raises TypeError or KeyError for anything else."""
        evaluations = [Evaluation(**{**one, "interval": tuple(one["interval"])}) for one in values["evaluations"]]
        end = End(values["end"]) if values["end"] else None
        return cls(list(values["steps"]), evaluations, dict(values["cursor"]), list(values["warnings"]), end)


def evaluation_of(step: int, trajectories: Sequence[Trajectory]) -> Evaluation:
    """Accuracy over the scored trajectories, with its Wilson interval."""
    rewards = [reward for one in trajectories if (reward := finite_reward(one)) is not None]
    correct = sum(reward >= 1 for reward in rewards)
    return Evaluation(
        step=step,
        accuracy=correct / len(rewards) if rewards else None,
        n=len(trajectories),
        scored=len(rewards),
        interval=wilson_interval(correct, len(rewards)),
        mean_tool_calls=_mean([one.usage.tool_calls for one in trajectories]),
        mean_sampled_tokens=_mean([one.usage.sampled_tokens for one in trajectories]),
    )


def sampled_figures(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What the sampled episodes of a step say of the policy: rewards, lengths, calls, endings."""
    return {
        "reward": _mean([reward for one in trajectories if (reward := finite_reward(one)) is not None]),
        "mean_tool_calls": _mean([one.usage.tool_calls for one in trajectories]),
        "mean_model_tokens": _mean([one.usage.sampled_tokens for one in trajectories]),
        "mean_turns": _mean([one.usage.turns for one in trajectories]),
        "status": counted(one.status.value for one in trajectories),
    }


def counted(values: Iterable[str]) -> dict[str, int]:
    """How often each value occurs, by name."""
    return dict(sorted(Counter(values).items()))


_COLLAPSED = 0.3
_COLLAPSED_ENTROPY = 0.05
_WATCHED = (("mean_model_tokens", "model tokens an episode"), ("mean_tool_calls", "tool calls an episode"))


def collapse_warnings(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Signs that the policy collapses: length, calls or entropy far below the first step's."""
    if len(steps) < 2:
        return []
    first, last = steps[0], steps[-1]
    warnings = [
        f"step {last['step']}: {last[name]:.1f} {words}, {first[name]:.1f} in the first step"
        for name, words in _WATCHED
        if last[name] < _COLLAPSED * first[name]
    ]
    if last["entropy"] < _COLLAPSED_ENTROPY * first["entropy"]:
        warnings.append(f"step {last['step']}: entropy {last['entropy']:.4f} nats, {first['entropy']:.4f} at first")
    return warnings


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 6) if values else 0.0
