"""Why a trajectory ended. One enumeration for rollouts, curation, rewards and evaluation."""

from enum import StrEnum


class Status(StrEnum):
    """How one trajectory ended. Every trajectory has exactly one status; metrics count them one-hot."""

    COMPLETED = "completed"
    """The policy gave a final answer."""
    TRUNCATED = "truncated"
    """A generation hit its token limit or the context was full."""
    PARSE_ERROR = "parse_error"
    """The policy's text broke the grammar in a way that ended the episode."""
    TOOL_ERROR = "tool_error"
    """A tool's infrastructure failed for good; says nothing about the policy."""
    BUDGET_EXHAUSTED = "budget_exhausted"
    """Turns, tokens or tool calls ran out before an answer."""
    TIMEOUT = "timeout"
    """The episode's wall-clock budget ran out."""
    GRADER_ERROR = "grader_error"
    """A deterministic grader failed: the reward is None, never 0."""
    JUDGE_ERROR = "judge_error"
    """A model judge failed or its reply was unreadable: the reward is None, never 0."""
    ABORTED = "aborted"
    """The run was stopped from outside, or a worker died."""


POLICY_FAILURES: frozenset[Status] = frozenset(
    {Status.TRUNCATED, Status.PARSE_ERROR, Status.BUDGET_EXHAUSTED, Status.TIMEOUT}
)
"""Endings that count as a wrong answer of the policy (reward 0)."""

SCORING_FAILURES: frozenset[Status] = frozenset(
    {Status.TOOL_ERROR, Status.GRADER_ERROR, Status.JUDGE_ERROR, Status.ABORTED}
)
"""Endings that say nothing about the policy: unscored (reward None), shown apart."""
