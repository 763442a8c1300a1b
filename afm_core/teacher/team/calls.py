"""Typed tool calls: what a model may ask for, how its JSON becomes a tool's argument, and the call itself.

Every call brings a `thought`, so that a trajectory knows why it was made even from models that say nothing beside a
call; in the code profile also a `remark` on the result before, which that profile's reflections are made of. A call
that does not fit is answered with what is wrong and never dispatched.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from afm_core.coa import python_and_stdin
from afm_core.config import GrammarName, Structure
from afm_core.data import Tag, text_sha256
from afm_core.engines.backbone import ToolCall, ToolSpec
from afm_core.teacher.team.record import CallRecord
from afm_core.teacher.team.replies import format_of
from afm_core.tools.protocol import Tool, ToolResult, ToolStatus

ARGUMENTS: dict[Tag, dict[str, str]] = {
    Tag.WEB_SEARCH: {"query": "a short query"},
    Tag.WIKI_SEARCH: {"query": "a short query"},
    Tag.CRAWL_PAGE: {"page": "a title or an address; several divided by ' | '"},
    Tag.CODE: {"code": "Python that prints what is wanted"},
    Tag.VISUAL_INSPECTOR: {"file_path": "the image", "question": "what to look for"},
}
"""Tag -> its arguments, all texts and all required."""

THOUGHT = "thought"
REMARK = "remark"


class BadCall(ValueError):
    """A call that is not dispatched; the message is for the model."""


@dataclass(frozen=True)
class ReadCall:
    """A call as it goes to its tool."""

    tag: Tag
    argument: str
    thought: str
    remark: str


def tool_specs(tools: Mapping[Tag, Tool], grammar: GrammarName) -> tuple[ToolSpec, ...]:
    """The tools as a server is told of them, named by their tags."""
    return tuple(
        ToolSpec(name=tag.value, description=tool.description, parameters=_schema(tag, grammar))
        for tag, tool in tools.items()
    )


def turn_format(tools: Mapping[Tag, Tool], grammar: GrammarName, structure: Structure) -> dict[str, Any] | None:
    """What a server is asked to hold a turn of the JSON protocol to: each call with the arguments of its own tool."""
    text = {"type": "string"}
    arguments = {tag: _schema(tag, grammar) for tag in tools}
    calls = [
        {"type": "object", "properties": {"tool": {**text, "enum": [tag.value]}, "arguments": schema}}
        for tag, schema in arguments.items()
    ]
    properties = {"thought": text, "calls": {"type": "array", "items": {"anyOf": calls}}, "report": text}
    return format_of("TurnReply", {"type": "object", "properties": properties}, structure)


def argument_lines(tools: Mapping[Tag, Tool], grammar: GrammarName) -> str:
    """The arguments of each tool in words, a line each."""
    return "\n".join(f"- {tag}: {json.dumps(_texts(tag, grammar))}" for tag in tools)


def read_call(call: ToolCall, tools: Mapping[Tag, Tool]) -> ReadCall:
    """The call, if it fits its tool. Raises BadCall."""
    known = {tag.value: tag for tag in tools}
    if call.name not in known:
        raise BadCall(f"There is no tool {call.name!r}; there are {', '.join(known)}.")
    tag = known[call.name]
    try:
        values = json.loads(call.arguments)
    except (ValueError, RecursionError) as error:
        raise BadCall(f"The arguments are not valid JSON ({error}).") from error
    if not isinstance(values, dict):
        raise BadCall(f"The arguments must be one JSON object, not {type(values).__name__}.")
    names = tuple(ARGUMENTS[tag])
    thought, remark = (_said(values.pop(name, "")) for name in (THOUGHT, REMARK))
    if set(values) != set(names) or not all(isinstance(one, str) and one.strip() for one in values.values()):
        given = ", ".join(sorted(map(str, values))) or "nothing"
        raise BadCall(f"{tag} takes {', '.join(names)}, each a text that is not empty; got {given}.")
    return ReadCall(tag, _argument(tag, values), thought, remark)


async def dispatch(call: ToolCall, tools: Mapping[Tag, Tool], take: Callable[[], bool]) -> CallRecord:
    """Make the call in a thread and record it. `take` takes one from the budget, False if none is left.

    A tool that raises is an infrastructure failure; nothing is raised here.
    """
    try:
        read = read_call(call, tools)
    except BadCall as error:
        return _record(call, None, ToolResult(ToolStatus.BAD_ARGUMENTS, str(error)), dispatched=False)
    if not take():
        refusal = ToolResult(ToolStatus.REFUSED, "No tool call is left: report what you know.")
        return _record(call, read, refusal, dispatched=False)
    started = time.perf_counter()
    result = await _in_thread(tools[read.tag], read.argument)
    return _record(call, read, result, dispatched=True, seconds=time.perf_counter() - started)


def _in_thread(tool: Tool, argument: str) -> "asyncio.Future[ToolResult]":
    """Call a tool in a daemon thread of its own: one that hangs holds neither the loop nor the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ToolResult] = loop.create_future()

    def give(result: ToolResult) -> None:
        if not future.done():  # nobody waits any more
            future.set_result(result)

    def work() -> None:
        try:
            result = tool.call(argument)
        except Exception as error:  # noqa: BLE001 - recorded: the rollout ends as tool_error
            result = ToolResult(ToolStatus.INFRA_ERROR, f"{tool.name} raised {type(error).__name__}: {error}")
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(give, result)

    threading.Thread(target=work, name=f"tool-{tool.name}", daemon=True).start()
    return future


def _record(
    call: ToolCall, read: ReadCall | None, result: ToolResult, *, dispatched: bool, seconds: float = 0.0
) -> CallRecord:
    return CallRecord(
        id=call.id,
        name=call.name,
        arguments=call.arguments,
        tag=read.tag if read else None,
        argument=read.argument if read and dispatched else None,
        thought=read.thought if read else "",
        remark=read.remark if read else "",
        status=result.status,
        observation=result.text,
        observation_sha256=text_sha256(result.text),
        seconds=round(seconds, 4),
    )


def _texts(tag: Tag, grammar: GrammarName) -> dict[str, str]:
    texts = {THOUGHT: "why this call, in one sentence"}
    if grammar is GrammarName.CODE:
        texts[REMARK] = "what the last result showed; 'nothing yet' at the first call"
    return texts | ARGUMENTS[tag]


def _schema(tag: Tag, grammar: GrammarName) -> dict[str, Any]:
    texts = _texts(tag, grammar)
    properties = {name: {"type": "string", "description": text} for name, text in texts.items()}
    return {"type": "object", "properties": properties, "required": list(texts), "additionalProperties": False}


def _argument(tag: Tag, values: dict[str, str]) -> str:
    """The text between the call's tags."""
    if tag is Tag.VISUAL_INSPECTOR:
        return f"\n```json\n{json.dumps(values, ensure_ascii=False)}\n```\n"
    (text,) = values.values()
    if tag is Tag.CODE and python_and_stdin(text) is None:
        return f"\n```py\n{text.strip()}\n```\n"
    return text.strip()


def _said(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
