"""What every importer shares: building a trajectory from elements, and counting what was dropped and why."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from afm_core.coa.escape import holds_tags
from afm_core.coa.parser import Parsed, parse
from afm_core.coa.profiles import grammar_for
from afm_core.coa.traces import check_trajectory
from afm_core.config import GrammarName
from afm_core.data import TOOL_TAGS, Origin, Segment, Status, Tag, Trajectory, Usage


class DropReason(StrEnum):
    """Why an importer dropped a row."""

    NO_QUESTION = "no_question"
    """No user turn, question or instruction could be found."""
    NO_ELEMENTS = "no_elements"
    """The row holds nothing of a trajectory."""
    BROKEN_TAGS = "broken_tags"
    """Unequal, nested or unknown tags, or text outside elements: the trace cannot be divided safely."""
    TAGS_IN_TEXT = "tags_in_text"
    """Free text spells tags of the language."""
    UNKNOWN_TOOL = "unknown_tool"
    """A tool that has no tag in the language."""
    MALFORMED_ARGUMENTS = "malformed_arguments"
    """A call's arguments cannot be read."""
    MISSING_RESULT = "missing_result"
    """A call without its result, or a result without its call."""
    FAILED_RUN = "failed_run"
    """The log itself says that the run failed."""
    ANSWER_OF_ANOTHER_RUN = "answer_of_another_run"
    """The logged answer is not the one these steps gave (best-of-N logs keep the last run's steps)."""
    DUPLICATE = "duplicate"
    """Question and trace are equal to an earlier row's."""


class Dropped(ValueError):
    """A row that an importer refuses."""

    def __init__(self, reason: DropReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass
class Imported:
    """What an import gave. `dropped` lists (row, reason, message)."""

    rows: int = 0
    trajectories: list[Trajectory] = field(default_factory=list)
    dropped: list[tuple[int, DropReason, str]] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """How many rows were dropped for each reason."""
        return dict(sorted(Counter(reason.value for _, reason, _ in self.dropped).items()))


def teacher(tag: Tag, text: str, mistake: bool = False) -> Segment:
    """A demonstrated element. Raises Dropped if its text spells tags."""
    if holds_tags(text):
        raise Dropped(DropReason.TAGS_IN_TEXT, f"<{tag}> spells tags of the language in its text")
    return Segment(origin=Origin.TEACHER, tag=tag, text=text, mistake=mistake)


def observed(text: str) -> Segment:
    """A tool's result, raw."""
    return Segment(origin=Origin.TOOL, tag=Tag.OBSERVATION, text=text)


def segments_of_trace(text: str) -> list[Segment]:
    """Segments of a trace in our language. Raises Dropped if its structure is broken."""
    parsed = parse(text)
    _refuse_broken(parsed)
    return [
        observed(element.text) if element.tag is Tag.OBSERVATION else teacher(element.tag, element.text)
        for element in parsed.elements
    ]


def assemble(
    question: str, segments: Sequence[Segment], grammar: GrammarName, source: str, **provenance: str
) -> Trajectory:
    """A trajectory with its violations counted; the question may be "" (a trace published alone).

    Raises Dropped if it has no element.
    """
    if not segments:
        raise Dropped(DropReason.NO_ELEMENTS, "no element of the language found")
    answers = [segment.text for segment in segments if segment.tag is Tag.ANSWER]
    content = "\x00".join([question, *(f"{segment.tag}\x01{segment.text}" for segment in segments)])
    trajectory = Trajectory(
        id=hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16],
        task_id=hashlib.sha256((question or content).encode("utf-8", "surrogatepass")).hexdigest()[:16],
        question=question,
        answer=answers[-1].strip() if answers else None,
        grammar=grammar,
        source=source,
        segments=tuple(segments),
        status=Status.COMPLETED if answers else Status.TRUNCATED,
        usage=Usage(
            turns=1 + sum(segment.origin is Origin.TOOL for segment in segments),
            tool_calls=sum(segment.tag in TOOL_TAGS for segment in segments),
        ),
        provenance={key: value for key, value in provenance.items() if value},
    )
    violations = check_trajectory(trajectory, grammar_for(grammar))
    return trajectory.model_copy(update={"violations": tuple(item.code.value for item in violations)})


def _refuse_broken(parsed: Parsed) -> None:
    if parsed.violations:
        first = parsed.violations[0]
        raise Dropped(DropReason.BROKEN_TAGS, f"{first.code} at character {first.start}: {first.message}")
