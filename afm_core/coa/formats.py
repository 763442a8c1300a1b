"""Files of trajectories: validate, import, export. The functions behind `afm trajectories`.

Import assigns origins: what a tool returned is of origin tool, everything else of origin teacher. Export
writes the whole trace as one assistant turn (sharegpt, alpaca: the authors' released form) or as messages
with tool calls (openai).
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from afm_core.coa.formats_build import Dropped, DropReason, Imported, assemble, segments_of_trace
from afm_core.coa.formats_calls import arguments_of
from afm_core.coa.formats_messages import from_openai, from_sharegpt
from afm_core.coa.formats_read import Row, first_text, question_in, read_rows, text_field
from afm_core.coa.formats_steps import from_oagents, from_smolagents, is_step_list
from afm_core.coa.grammar import Grammar
from afm_core.coa.parser import Element
from afm_core.coa.profiles import grammar_for
from afm_core.coa.prompts import prompt
from afm_core.coa.traces import check_text, check_trajectory, elements_of, render_trajectory
from afm_core.coa.violations import Violation
from afm_core.config import ConfigError, GrammarName, PromptStyle
from afm_core.data import TOOL_TAGS, Segment, Tag, Trajectory


class ImportFormat(StrEnum):
    """Where trajectories come from."""

    AFM = "afm"
    """The authors' released form (a JSON list whose `output` holds the trace), or our parquet."""
    OPENAI = "openai"
    """`messages` with tool_calls."""
    SHAREGPT = "sharegpt"
    """`conversations` of human, gpt, function_call, observation."""
    OAGENTS = "oagents"
    """JSON lines of an OAgents run."""
    SMOLAGENTS = "smolagents"
    """Steps of a smolagents memory."""


class ExportFormat(StrEnum):
    """What trajectories are written as."""

    SHAREGPT = "sharegpt"
    ALPACA = "alpaca"
    OPENAI = "openai"


_READERS: dict[ImportFormat, Callable[[Row], tuple[str, list[Segment]]]] = {
    ImportFormat.OPENAI: from_openai,
    ImportFormat.SHAREGPT: from_sharegpt,
    ImportFormat.OAGENTS: from_oagents,
    ImportFormat.SMOLAGENTS: from_smolagents,
}


def validate_file(path: Path, grammar: Grammar) -> dict[str, Any]:
    """Check every row: {"rows", "valid", "results": [{"index", "valid", "violations": [...]}]}.

    A violation is {"code", "segment", "message"}; segment is the index of the element (of the segment, for
    our parquet). Raises ConfigError for a file that is neither the released form nor our parquet.
    """
    results = []
    for index, row in enumerate(read_rows(path)):
        if isinstance(row, Trajectory):
            found = check_trajectory(row, grammar)
        else:
            found = check_text(text_field(path, index, row, "output"), grammar)
        violations = [_shown(violation) for violation in found]
        results.append({"index": index, "valid": not violations, "violations": violations})
    valid = sum(1 for result in results if result["valid"])
    return {"rows": len(results), "valid": valid, "results": results}


def import_file(path: Path, source: ImportFormat, grammar: GrammarName) -> Imported:
    """Read a file of another system as trajectories of a profile. Rows that cannot be read are dropped and
    counted.

    Raises ConfigError for a file that cannot be read at all, or whose rows lack what the format is known
    by.
    """
    rows = read_rows(path)
    if source is ImportFormat.SMOLAGENTS and is_step_list(rows):
        rows = [{"steps": rows}]
    imported = Imported(rows=len(rows))
    seen: set[str] = set()
    for index, row in enumerate(rows):
        try:
            trajectory = _import_row(path, index, row, source, grammar)
            if trajectory.id in seen:
                raise Dropped(DropReason.DUPLICATE, "equal to an earlier row")
        except Dropped as error:
            imported.dropped.append((index, error.reason, str(error)))
            continue
        seen.add(trajectory.id)
        imported.trajectories.append(trajectory)
    return imported


def read_trajectories(path: Path, grammar: GrammarName = GrammarName.WEB) -> list[Trajectory]:
    """Trajectories of a file: our parquet, or the released form (rows that break are left out)."""
    return import_file(path, ImportFormat.AFM, grammar).trajectories


def export_rows(
    trajectories: Sequence[Trajectory], target: ExportFormat, style: PromptStyle = PromptStyle.FULL
) -> list[Row]:
    """Trajectories as rows of another system's format."""
    return [_export(trajectory, target, style) for trajectory in trajectories]


def show(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory for people and programs: its fields, its elements with their places, its violations."""
    return {
        **trajectory.model_dump(mode="json", exclude={"segments"}),
        "elements": [_element(element, trajectory) for element in elements_of(trajectory)],
        "violations": [_shown(violation) for violation in check_trajectory(trajectory)],
    }


def _import_row(
    path: Path, index: int, row: Row | Trajectory, source: ImportFormat, grammar: GrammarName
) -> Trajectory:
    if isinstance(row, Trajectory):
        if source is not ImportFormat.AFM:
            raise ConfigError(f"{path} holds trajectories of ours: import it with --from afm")
        return row
    if source is ImportFormat.AFM:
        trace = text_field(path, index, row, "output")
        asked = first_text(row, "question", "query", "input", "instruction", "prompt")
        question, segments = question_in(asked), segments_of_trace(trace)
    else:
        question, segments = _READERS[source](row)
    if not question and source is not ImportFormat.AFM:
        raise Dropped(DropReason.NO_QUESTION, "no question found")
    identity = row.get("id", row.get("task_id"))
    return assemble(
        question,
        segments,
        grammar,
        f"import:{source}",
        file=path.name,
        row=str(index),
        original_id="" if identity is None else str(identity),
        true_answer=first_text(row, "true_answer", "golden_answer"),
    )


def _export(trajectory: Trajectory, target: ExportFormat, style: PromptStyle) -> Row:
    asked = prompt(trajectory.question, grammar_for(trajectory.grammar), style)
    if target is ExportFormat.OPENAI:
        return {"id": trajectory.id, "messages": _messages(asked, elements_of(trajectory))}
    trace = render_trajectory(trajectory)
    if target is ExportFormat.ALPACA:
        return {"id": trajectory.id, "instruction": asked, "input": "", "output": trace}
    turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": trace}]
    return {"id": trajectory.id, "conversations": turns}


def _messages(asked: str, elements: Sequence[Element]) -> list[Row]:
    messages: list[Row] = [{"role": "user", "content": asked}]
    spoken = ""
    calls = 0
    for element in elements:
        if element.tag is Tag.OBSERVATION:
            messages.append({"role": "tool", "tool_call_id": f"call_{calls - 1}", "content": element.text})
        elif element.tag in TOOL_TAGS:
            function = {"name": element.tag.value, "arguments": arguments_of(element.tag, element.text)}
            call = {"id": f"call_{calls}", "type": "function", "function": function}
            messages.append({"role": "assistant", "content": spoken, "tool_calls": [call]})
            spoken, calls = "", calls + 1
        else:
            spoken += f"<{element.tag}>{element.text}</{element.tag}>"
    if spoken:
        messages.append({"role": "assistant", "content": spoken})
    return messages


def _element(element: Element, trajectory: Trajectory) -> dict[str, Any]:
    segment = trajectory.segments[element.segment]
    return {
        "tag": element.tag.value,
        "text": element.text,
        "segment": element.segment,
        "start": element.start,
        "end": element.end,
        "origin": segment.origin.value,
        "mistake": segment.mistake,
    }


def _shown(violation: Violation) -> dict[str, Any]:
    return {"code": violation.code.value, "segment": violation.segment, "message": violation.message}
