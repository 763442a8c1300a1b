"""Who may train: the one place where a trajectory is let in or left out, with a reason that is counted.

Departs from the usual trainer in two ways. A failure that says nothing about the policy (a tool's infrastructure, a
grader, a judge, an abort, a reward that is no number) is never a 0: it is left out, of the gradient and of its group's
baseline. And nothing is left out silently: every trajectory trains or has exactly one reason why not.
"""

import math
from enum import StrEnum

from afm_core.coa import parse
from afm_core.config import FailurePolicy, RlConfig
from afm_core.data import SCORING_FAILURES, TOOL_TAGS, Origin, Segment, Status, Tag, Trajectory


class Masked(StrEnum):
    """Why a trajectory does not train. `judge` gives the first that holds, in this order; groups add the last three."""

    TOOL_ERROR = "tool_error"
    """Unscored: a tool's infrastructure failed for good."""
    GRADER_ERROR = "grader_error"
    """Unscored: the deterministic grader failed or could not judge."""
    JUDGE_ERROR = "judge_error"
    """Unscored: the model judge failed, was too slow, or its reply was unreadable."""
    ABORTED = "aborted"
    """Unscored: stopped from outside, or the worker or the engine died."""
    UNSCORED = "unscored"
    """No reward, though the episode ended in a way that is scored: whoever scored it forgot it."""
    NOT_FINITE = "not_finite"
    """The reward is NaN or infinite: it would poison its group's mean."""
    NO_LOGPROBS = "no_logprobs"
    """Nothing was sampled, or a token has no id or no finite log-probability of the sampler: no ratio can be formed."""
    TOO_LONG = "too_long"
    """More tokens, prompt and observations included, than `rl.max_tokens`."""
    TRUNCATED = "truncated"
    """Cut by a token limit, with rl.truncated = mask."""
    PARSE_ERROR = "parse_error"
    """Ended by broken grammar, with rl.parse_error = mask."""
    VOID_TURN = "void_turn"
    """A sampled turn led nowhere (see `has_void_turn`), with rl.void_turn = mask."""
    STALE = "stale"
    """A token was sampled by a policy more than `rl.maximum_staleness` updates old."""
    SMALL_GROUP = "small_group"
    """Fewer than `rl.minimum_group` members of its group may train: there is no baseline."""
    NO_SIGNAL = "no_signal"
    """All members of its group that may train have one reward: every advantage would be 0."""


def judge(trajectory: Trajectory, config: RlConfig) -> Masked | None:
    """Why this trajectory alone may not train, None if it may. Age and group are judged by `groups.assess`."""
    if trajectory.status in SCORING_FAILURES:
        return Masked(trajectory.status.value)
    if trajectory.reward is None:
        return Masked.UNSCORED
    if not math.isfinite(trajectory.reward):
        return Masked.NOT_FINITE
    if not _has_logprobs(trajectory):
        return Masked.NO_LOGPROBS
    if sum(len(segment.token_ids or ()) for segment in trajectory.segments) > config.max_tokens:
        return Masked.TOO_LONG
    if trajectory.status is Status.TRUNCATED and config.truncated is FailurePolicy.MASK:
        return Masked.TRUNCATED
    if trajectory.status is Status.PARSE_ERROR and config.parse_error is FailurePolicy.MASK:
        return Masked.PARSE_ERROR
    if config.void_turn is FailurePolicy.MASK and has_void_turn(trajectory):
        return Masked.VOID_TURN
    return None


def has_void_turn(trajectory: Trajectory) -> bool:
    """Whether a sampled turn holds neither a closed tool call nor a closed answer (SimpleTIR, arXiv 2509.02479)."""
    useful = TOOL_TAGS | {Tag.ANSWER}
    return any(
        not any(element.closed and element.tag in useful for element in parse(segment.text, sampled=True).elements)
        for segment in sampled_segments(trajectory)
    )


def sampled_segments(trajectory: Trajectory) -> list[Segment]:
    """The turns that the policy sampled, in order."""
    return [segment for segment in trajectory.segments if segment.origin is Origin.SAMPLED]


def finite_reward(trajectory: Trajectory) -> float | None:
    """The reward if the trajectory is scored and its reward is a number; what rewards may be averaged over."""
    if trajectory.status in SCORING_FAILURES or trajectory.reward is None or not math.isfinite(trajectory.reward):
        return None
    return trajectory.reward


def _has_logprobs(trajectory: Trajectory) -> bool:
    """Token in, token out: every segment has its ids, and every sampled token its finite log-probability."""
    logprobs = [value for segment in sampled_segments(trajectory) for value in segment.logprobs or ()]
    return (
        bool(logprobs)
        and all(segment.token_ids is not None for segment in trajectory.segments)
        and all(segment.logprobs is not None for segment in sampled_segments(trajectory))
        and all(math.isfinite(value) for value in logprobs)
    )
