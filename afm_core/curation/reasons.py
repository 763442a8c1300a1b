"""Why a trajectory was not kept. Every rejected row has exactly one reason: the first that applies, in
DECISION_ORDER."""

from dataclasses import dataclass
from enum import StrEnum


class RejectReason(StrEnum):
    """Reasons, in the order in which they are decided."""

    UNREADABLE = "unreadable"
    """The row is no trajectory of this schema."""
    UNKNOWN_TASK = "unknown_task"
    """No task of that id exists: neither split nor answer can be checked."""
    LEAK_SPLIT = "leak_split"
    """The task is not of the train split."""
    LEAK_COMPONENT = "leak_component"
    """The task's component also holds tasks of dev, gate or test."""
    LEAK_QUESTION = "leak_question"
    """The question is a dev, gate or test question, verbatim or nearly so."""
    LEAK_ENTITY = "leak_entity"
    """An entity of a dev, gate or test task is named somewhere in the trajectory. A longer name around it excuses it
    only if a training task knows that name; in doubt a row is dropped (about one in a hundred)."""
    NOT_COMPLETED = "not_completed"
    """The status is not completed."""
    GRAMMAR = "grammar"
    """The language's grammar is violated."""
    UNSCORED = "unscored"
    """The answer could not be scored."""
    WRONG_ANSWER = "wrong_answer"
    """The answer is wrong."""
    TOO_SIMPLE = "too_simple"
    """Fewer activations of agents and tools than minimum_interactions."""
    REDUNDANT_CALL = "redundant_call"
    """A tool is called twice with the same input."""
    CLAIRVOYANT = "clairvoyant"
    """The teacher wrote something that it had not seen."""
    DUPLICATE = "duplicate"
    """Question and text equal those of a kept trajectory, case and white space aside."""
    NOT_REPLAYED = "not_replayed"
    """An old demonstration that a retraining does not show again (replay_share)."""
    WITHOUT_REFLECTION = "without_reflection"
    """Down-sampled: the trajectory never reflects (without_reflection_share)."""
    SURPLUS = "surplus"
    """More trajectories than curation.maximum."""
    GUESSABLE_SURPLUS = "guessable_surplus"
    """More guessable answers than guessable_share of the mix."""


DECISION_ORDER = tuple(RejectReason)
"""Leaks come first, so that their counts are complete; then one row's filters; then what depends on other
rows."""


@dataclass(frozen=True)
class Rejection:
    """One rejected row. `detail` names the place or the figure."""

    id: str
    reason: RejectReason
    detail: str = ""
