"""How a trajectory can break the language: one enumeration for conversion, rollout, filtering, reward and
import.
"""

from dataclasses import dataclass
from enum import StrEnum


class ViolationCode(StrEnum):
    """What is wrong. The first group is found by the parser, the second by the grammar's state machine."""

    UNKNOWN_TAG = "unknown_tag"
    """Between elements stands something shaped like a tag that the language does not have."""
    UNOPENED_TAG = "unopened_tag"
    """A closing tag outside any element."""
    UNCLOSED_TAG = "unclosed_tag"
    """An element is never closed (or the next element opens before it is closed)."""
    NESTED_TAG = "nested_tag"
    """A whole element stands inside another one."""
    TAG_IN_TEXT = "tag_in_text"
    """A lone tag of the language stands in an element's free text."""
    STRAY_TEXT = "stray_text"
    """Text between elements, or an overhang after a turn's last tag, that is not white space."""
    TEXT_AFTER_ANSWER = "text_after_answer"
    """Anything but white space after the final answer, a second answer included."""
    FORGED_OBSERVATION = "forged_observation"
    """The model wrote an observation itself."""

    FOREIGN_TAG = "foreign_tag"
    """A tag of the language that this profile does not have."""
    EMPTY_ELEMENT = "empty_element"
    """An element without text (an observation may be empty: a tool decides that)."""
    FORBIDDEN_TRANSITION = "forbidden_transition"
    """The profile's table does not allow this element here."""
    MISSING_THINK = "missing_think"
    """An element that needs a think before it has none."""
    MISSING_OBSERVATION = "missing_observation"
    """A tool call is not followed by its observation."""
    UNEXPECTED_OBSERVATION = "unexpected_observation"
    """An observation does not follow a tool call."""
    SECOND_PLAN = "second_plan"
    """A second plan in a profile that has exactly one, first."""
    MALFORMED_CODE = "malformed_code"
    """A code call is not one ```py block (and at most one ```sh block of standard input)."""
    MALFORMED_ARGUMENTS = "malformed_arguments"
    """A call with JSON arguments is not one ```json object."""
    NO_REPLAN_AFTER_POOR = "no_replan_after_poor"
    """A reflection scored something poor and the next step is not a plan."""
    NO_REPLAN_AFTER_LOW_SCORE = "no_replan_after_low_score"
    """A double check scored 1 or 2 and the next step is neither a plan nor the answer."""
    ANSWERED_DESPITE_LOW_SCORE = "answered_despite_low_score"
    """A double check scored 1 or 2 and the answer was given all the same."""
    NO_ANSWER_AFTER_HIGH_SCORE = "no_answer_after_high_score"
    """A double check scored 3 or 4 and the next step is not the answer."""
    ANSWER_DIFFERS_FROM_SUGGESTED = "answer_differs_from_suggested"
    """The answer is not the suggested answer (white space and case aside)."""
    MISSING_ANSWER = "missing_answer"
    """The trajectory ends without an answer."""


@dataclass(frozen=True)
class Violation:
    """One violation. `segment` is the index of the segment (of the element, for plain text) where it
    happened.

    start and end, when known, are a range of characters of the text that was parsed.
    """

    code: ViolationCode
    segment: int
    message: str
    start: int | None = None
    end: int | None = None
