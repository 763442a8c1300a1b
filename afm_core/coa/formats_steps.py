"""Importing step logs of OAgents and smolagents: planning steps become plans, action steps think, call,
observation.

A step that failed keeps its call as a demonstrated mistake. Rows whose logged answer these steps did not
give are refused: best-of-N logs keep the last run's steps beside another run's answer.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from afm_core.coa.escape import holds_tags
from afm_core.coa.formats_build import Dropped, DropReason, observed, teacher
from afm_core.coa.formats_calls import FINAL_ANSWER, argument_text, tag_of_tool
from afm_core.coa.formats_messages import final_answer_text
from afm_core.coa.formats_read import Row, first_text, question_in
from afm_core.coa.readings import same_answer
from afm_core.data import Segment, Tag

_ACTION = re.compile(r"```|<code>|^\s*(?:Code|Action|Calling tools?)\s*:", re.MULTILINE)
_THOUGHT = re.compile(r"^\s*Thought\s*:\s*", re.IGNORECASE)
_HOLDERS = frozenset({"steps", "intermediate_steps", "memory"})
_FAILURES = ("agent_error", "parsing_error", "iteration_limit_exceeded")


def from_oagents(row: Row) -> tuple[str, list[Segment]]:
    """(question, segments) of a line of an OAgents log. Raises Dropped."""
    for name in _FAILURES:
        if row.get(name) not in (None, False, ""):
            raise Dropped(DropReason.FAILED_RUN, f"the log says {name}: {str(row[name])[:80]!r}")
    return _from_steps(row, row.get("intermediate_steps"), row.get("prediction"))


def from_smolagents(row: Row) -> tuple[str, list[Segment]]:
    """(question, segments) of a run's memory: `steps` with its `task`, as in
    `agent.memory.get_full_steps()`.
    """
    steps = row.get("steps", row.get("intermediate_steps", row.get("memory")))
    return _from_steps(row, steps, row.get("output", row.get("prediction")))


def is_step_list(rows: Sequence[object]) -> bool:
    """Whether a file's rows are the steps of one run rather than one run a row."""
    return bool(rows) and all(isinstance(row, dict) and _HOLDERS.isdisjoint(row) for row in rows)


def _from_steps(row: Row, steps: Any, prediction: Any) -> tuple[str, list[Segment]]:
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise Dropped(DropReason.NO_ELEMENTS, "no list of steps")
    question = question_in(first_text(row, "question", "task", "query"))
    segments: list[Segment] = []
    for step in steps:
        if segments and segments[-1].tag is Tag.ANSWER:
            break
        if step.get("task") and not question:
            question = question_in(str(step["task"]))
        if step.get("plan"):
            segments.append(teacher(Tag.PLAN, str(step["plan"]).strip()))
        elif step.get("tool_calls") or step.get("model_output"):
            segments += _action(step)
    answers = [segment.text for segment in segments if segment.tag is Tag.ANSWER]
    if prediction is not None and answers and not same_answer(str(prediction), answers[-1]):
        raise Dropped(
            DropReason.ANSWER_OF_ANOTHER_RUN,
            f"the log answers {str(prediction)[:60]!r}, the steps {answers[-1][:60]!r}",
        )
    return question, segments


def _action(step: Mapping[str, Any]) -> list[Segment]:
    thought = _thought(step.get("model_output"))
    segments = [teacher(Tag.THINK, thought)] if thought else []
    failed = bool(step.get("error"))
    calls = step.get("tool_calls") or []
    for call in calls:
        segments += _call(call, step, failed, alone=len(calls) == 1)
    return segments


def _call(call: Any, step: Mapping[str, Any], failed: bool, alone: bool) -> list[Segment]:
    function = call.get("function", call) if isinstance(call, dict) else {}
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise Dropped(DropReason.MALFORMED_ARGUMENTS, f"a call without a name: {str(call)[:80]!r}")
    arguments = function.get("arguments")
    if name == FINAL_ANSWER:
        return [teacher(Tag.ANSWER, final_answer_text(arguments))]
    if _ends_run(step, arguments) and not failed:
        return [teacher(Tag.ANSWER, str(step["action_output"]).strip())]
    if not alone:
        raise Dropped(DropReason.MISSING_RESULT, "several calls of one step share one observation")
    tag = tag_of_tool(name)
    return [teacher(tag, argument_text(tag, arguments), mistake=failed), observed(_observation(step))]


def _ends_run(step: Mapping[str, Any], arguments: Any) -> bool:
    """Whether a code action gave the final answer."""
    if step.get("action_output") is None:
        return False
    return bool(step.get("is_final_answer")) or f"{FINAL_ANSWER}(" in str(arguments)


def _observation(step: Mapping[str, Any]) -> str:
    found = step.get("observations") or step.get("observation")
    error = step.get("error")
    if isinstance(error, dict):
        error = error.get("message") or str(error)
    texts = [str(text).strip() for text in (found, error) if text]
    if not texts:
        raise Dropped(DropReason.MISSING_RESULT, "an action step without an observation")
    return "\n".join(texts)


def _thought(model_output: Any) -> str:
    """The free text before the action in a model's raw output."""
    if not isinstance(model_output, str):
        return ""
    match = _ACTION.search(model_output)
    text = model_output[: match.start()] if match else model_output
    text = _THOUGHT.sub("", text).strip()
    if holds_tags(text):
        raise Dropped(DropReason.TAGS_IN_TEXT, "the model's thought spells tags of the language")
    return text
