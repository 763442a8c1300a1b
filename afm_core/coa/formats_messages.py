"""Importing conversations: OpenAI messages with tool_calls, and ShareGPT.

A turn whose text holds our tags is read as a trace; other text becomes a think, and the last one the
answer. Nothing is invented: a missing plan or think shows as a violation of the imported trajectory.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from afm_core.coa.escape import holds_tags
from afm_core.coa.formats_build import Dropped, DropReason, observed, segments_of_trace, teacher
from afm_core.coa.formats_calls import FINAL_ANSWER, argument_text, tag_of_tool
from afm_core.coa.formats_read import Row, question_in
from afm_core.data import Segment, Tag

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "call",
    "tool_call": "call",
    "observation": "tool",
    "tool": "tool",
    "system": "system",
}


def from_openai(row: Row) -> tuple[str, list[Segment]]:
    """(question, segments) of `{"messages": [...]}`. Raises Dropped."""
    messages = row.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise Dropped(DropReason.NO_ELEMENTS, "field 'messages' is not a list of messages")
    results = {
        str(message.get("tool_call_id")): _content(message) for message in messages if message.get("role") == "tool"
    }
    segments: list[Segment] = []
    used: set[str] = set()
    spoken = [message for message in messages if message.get("role") == "assistant"]
    for number, message in enumerate(spoken):
        calls = message.get("tool_calls") or []
        segments += _speech(_content(message), last=number == len(spoken) - 1 and not calls)
        for call in calls:
            segments += _call(call, results, used)
    unused = results.keys() - used
    if unused:
        raise Dropped(DropReason.MISSING_RESULT, f"a result answers no call: {sorted(unused)[0]!r}")
    return _question(messages, "role"), segments


def from_sharegpt(row: Row) -> tuple[str, list[Segment]]:
    """(question, segments) of `{"conversations": [{"from", "value"}]}`. Raises Dropped."""
    turns = row.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise Dropped(DropReason.NO_ELEMENTS, "field 'conversations' is not a list of turns")
    roles = [_ROLES.get(str(turn.get("from")), "unknown") for turn in turns]
    last = max((place for place, role in enumerate(roles) if role == "assistant"), default=-1)
    segments: list[Segment] = []
    waiting = False
    for place, (turn, role) in enumerate(zip(turns, roles, strict=True)):
        text = str(turn.get("value") or "")
        if role == "unknown":
            raise Dropped(DropReason.NO_ELEMENTS, f"unknown speaker {turn.get('from')!r}")
        if (role == "tool") != waiting:
            raise Dropped(DropReason.MISSING_RESULT, "calls and results do not alternate")
        waiting = role == "call"
        if role == "assistant":
            segments += _speech(text, last=place == last)
        elif role == "call":
            segments.append(_sharegpt_call(text))
        elif role == "tool":
            segments.append(observed(text))
    if waiting:
        raise Dropped(DropReason.MISSING_RESULT, "the last call has no result")
    return _question(turns, "from"), segments


def _speech(text: str, last: bool) -> list[Segment]:
    if not text.strip():
        return []
    if holds_tags(text):
        return segments_of_trace(text)
    return [teacher(Tag.ANSWER if last else Tag.THINK, text.strip())]


def _call(call: Any, results: Mapping[str, str], used: set[str]) -> list[Segment]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Dropped(DropReason.MALFORMED_ARGUMENTS, f"a call without a function's name: {str(call)[:80]!r}")
    identity = str(call.get("id"))
    if function["name"] == FINAL_ANSWER:
        used.add(identity)
        return [teacher(Tag.ANSWER, final_answer_text(function.get("arguments")))]
    tag = tag_of_tool(function["name"])
    if identity not in results or identity in used:
        raise Dropped(DropReason.MISSING_RESULT, f"the call {identity!r} of <{tag}> has no result of its own")
    used.add(identity)
    return [teacher(tag, argument_text(tag, function.get("arguments"))), observed(results[identity])]


def final_answer_text(arguments: Any) -> str:
    """The answer in the arguments of a final-answer call. Raises Dropped if there is none."""
    import json

    value = arguments
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            value = arguments
    if isinstance(value, dict):
        value = value.get("answer", value.get("final_answer"))
    if value is None or not str(value).strip():
        raise Dropped(DropReason.MALFORMED_ARGUMENTS, "a final answer without text")
    return str(value).strip()


def _sharegpt_call(text: str) -> Segment:
    from afm_core.coa.readings import json_arguments

    call = json_arguments(text)
    if call is None or not isinstance(call.get("name"), str):
        raise Dropped(DropReason.MALFORMED_ARGUMENTS, f"a call that is no JSON object: {text[:80]!r}")
    tag = tag_of_tool(call["name"])
    return teacher(tag, argument_text(tag, call.get("arguments")))


def _question(turns: Sequence[Mapping[str, Any]], key: str) -> str:
    for turn in turns:
        if _ROLES.get(str(turn.get(key))) == "user":
            return question_in(_content(turn, "content" if key == "role" else "value"))
    return ""


def _content(message: Mapping[str, Any], key: str = "content") -> str:
    """A message's text; a list of parts gives the text parts joined."""
    content = message.get(key)
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""
