"""What one generation turn asks for: a tool call, the end, or a second try after an error.

Pure functions of the turn's text and the grammar's state. A call that does not parse is never dispatched; the policy
sees what was wrong with it instead.
"""

from dataclasses import dataclass

from afm_core.coa import Element, GrammarState, Parsed, ViolationCode, closed_book_answer, parse
from afm_core.data import TOOL_TAGS, Status, Tag
from afm_core.engines import FinishReason, Generation

_MALFORMED = frozenset(
    {
        ViolationCode.EMPTY_ELEMENT,
        ViolationCode.MALFORMED_CODE,
        ViolationCode.MALFORMED_ARGUMENTS,
        ViolationCode.FOREIGN_TAG,
        ViolationCode.NESTED_TAG,
        ViolationCode.TAG_IN_TEXT,
        ViolationCode.UNCLOSED_TAG,
        ViolationCode.UNOPENED_TAG,
    }
)
"""Violations of a call's own element that keep it from being dispatched; a mere wrong order does not."""


@dataclass(frozen=True)
class ToolCall:
    """A well-formed call to a bound tool."""

    tag: Tag
    argument: str


@dataclass(frozen=True)
class BadCall:
    """A call that was not dispatched; `message` is what the policy observes."""

    message: str


@dataclass(frozen=True)
class Ended:
    """The episode is over. `answer` is set only with status completed."""

    status: Status
    answer: str | None = None
    error: str = ""


Outcome = ToolCall | BadCall | Ended


def read_turn(generation: Generation, state: GrammarState, bound: frozenset[Tag], segment: int) -> Outcome:
    """Read an agent's turn and advance `state` over its elements. `segment` is the turn's index."""
    if generation.finish is FinishReason.ERROR:
        return Ended(Status.ABORTED, error=f"the engine failed: {generation.error}")
    parsed = parse(generation.text, segment=segment, sampled=True)
    found = {
        id(element): state.advance(element.tag, element.text, origin=element.origin) for element in parsed.elements
    }
    if any(violation.code is ViolationCode.FORGED_OBSERVATION for violation in parsed.violations):
        return Ended(Status.PARSE_ERROR)
    last = parsed.elements[-1] if parsed.elements else None
    if last is not None and last.tag is Tag.ANSWER and last.closed:
        return Ended(Status.COMPLETED, last.text.strip()) if last.text.strip() else Ended(Status.PARSE_ERROR)
    if generation.finish is FinishReason.LENGTH:
        return Ended(Status.TRUNCATED)
    if generation.finish is FinishReason.END or generation.stop not in {f"</{tag}>" for tag in TOOL_TAGS}:
        return Ended(Status.PARSE_ERROR)
    if last is None or f"</{last.tag}>" != generation.stop or not last.closed:
        return BadCall(f"error: {generation.stop} closes no call")
    return _call(
        last, parsed, [violation.message for violation in found[id(last)] if violation.code in _MALFORMED], bound
    )


def _call(element: Element, parsed: Parsed, wrong: list[str], bound: frozenset[Tag]) -> ToolCall | BadCall:
    """The call of a closed tool element, unless something is wrong inside it or its tool is not bound."""
    inside = [
        violation.message
        for violation in parsed.violations
        if violation.code in _MALFORMED
        and violation.start is not None
        and element.start <= violation.start < element.end
    ]
    if wrong or inside:
        return BadCall(f"error: the call was not made: {(wrong + inside)[0]}")
    if element.tag not in bound:
        return BadCall(f"error: the call was not made: there is no tool <{element.tag}>")
    return ToolCall(element.tag, element.text)


def read_closed_book(generation: Generation) -> Outcome:
    """Read a reply that was asked for without tools: its answer element, else its first whole line."""
    if generation.finish is FinishReason.ERROR:
        return Ended(Status.ABORTED, error=f"the engine failed: {generation.error}")
    text = generation.text
    whole = generation.finish is not FinishReason.LENGTH or "\n" in text.strip() or f"</{Tag.ANSWER}>" in text
    if not whole:
        return Ended(Status.TRUNCATED)
    answer = closed_book_answer(text)
    return Ended(Status.COMPLETED, answer) if answer else Ended(Status.PARSE_ERROR)
