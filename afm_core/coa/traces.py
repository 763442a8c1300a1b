"""Between trajectories and text: rendering segments, reading elements back, checking a whole trajectory.

Rendered text has nothing between elements. What a segment is follows from its origin: tool text is escaped,
sampled text is verbatim, teacher text that spells our tags is refused.
"""

from collections.abc import Sequence

from afm_core.coa.escape import escape, holds_tags
from afm_core.coa.grammar import Grammar
from afm_core.coa.parser import Element, parse
from afm_core.coa.profiles import grammar_for
from afm_core.coa.violations import Violation, ViolationCode
from afm_core.data import Origin, Segment, Tag, Trajectory


def render(segment: Segment) -> str:
    """A segment as the model reads it. Raises ValueError for teacher text that holds tags of the language."""
    if segment.origin is Origin.TOOL:
        return f"<{Tag.OBSERVATION}>{escape(segment.text)}</{Tag.OBSERVATION}>"
    if segment.origin is Origin.TEACHER and segment.tag is not None:
        if holds_tags(segment.text):
            raise ValueError(f"teacher text of <{segment.tag}> holds tags of the language: {segment.text[:80]!r}")
        return f"<{segment.tag}>{segment.text}</{segment.tag}>"
    return segment.text


def render_trajectory(trajectory: Trajectory) -> str:
    """The assistant's turn: every segment but prompt and template, with nothing in between."""
    return "".join(
        render(segment) for segment in trajectory.segments if segment.origin not in (Origin.PROMPT, Origin.TEMPLATE)
    )


def elements_of(trajectory: Trajectory) -> list[Element]:
    """The elements in order, each with its segment's index and its range of characters in that segment's
    text.

    A sampled turn is parsed; an observation that the model forged appears with origin sampled.
    """
    return [element for part in _read(trajectory.segments) for element in part[0]]


def check_trajectory(trajectory: Trajectory, grammar: Grammar | None = None) -> list[Violation]:
    """All violations of the parser and of the grammar (default: the trajectory's own), by segment."""
    grammar = grammar or grammar_for(trajectory.grammar)
    elements: list[Element] = []
    found: list[Violation] = []
    for part in _read(trajectory.segments):
        elements += part[0]
        found += part[1]
    return merge_violations(found, grammar.check(elements))


def check_text(text: str, grammar: Grammar) -> list[Violation]:
    """All violations of a whole trace given as text; `segment` is the element's ordinal."""
    parsed = parse(text)
    return merge_violations(parsed.violations, grammar.check(number(parsed.elements)))


def number(elements: Sequence[Element]) -> list[Element]:
    """Elements of one text with their ordinals as segments."""
    return [
        Element(item.tag, item.text, index, item.start, item.end, item.origin, item.closed)
        for index, item in enumerate(elements)
    ]


def merge_violations(first: Sequence[Violation], second: Sequence[Violation]) -> list[Violation]:
    """Both lists in order of segments, a code once a segment for findings that both sides make."""
    merged: list[Violation] = []
    seen = {(violation.code, violation.segment) for violation in first}
    extra = [violation for violation in second if (violation.code, violation.segment) not in seen]
    merged.extend(first)
    merged.extend(extra)
    return sorted(merged, key=lambda violation: violation.segment)


def _read(segments: Sequence[Segment]) -> list[tuple[list[Element], list[Violation]]]:
    return [_read_segment(segment, index) for index, segment in enumerate(segments)]


def _read_segment(segment: Segment, index: int) -> tuple[list[Element], list[Violation]]:
    if segment.origin in (Origin.PROMPT, Origin.TEMPLATE):
        return [], []
    end = len(segment.text)
    if segment.origin is Origin.TOOL:
        return [Element(Tag.OBSERVATION, segment.text, index, 0, end, Origin.TOOL)], []
    if segment.tag is not None:
        element = Element(segment.tag, segment.text, index, 0, end, segment.origin)
        message = f"<{segment.tag}> holds tags of the language in its text"
        bad = [Violation(ViolationCode.TAG_IN_TEXT, index, message)] if holds_tags(segment.text) else []
        return [element], bad
    parsed = parse(segment.text, segment=index, sampled=segment.origin is Origin.SAMPLED)
    return list(parsed.elements), list(parsed.violations)
