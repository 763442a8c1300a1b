"""Reading a server's HTTP reply: a usable ChatReply, or why there is none. Nothing a server sends can raise here."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from afm_core.engines.backbone.messages import CallStatus, ChatReply, Tokens, ToolCall

_DETAIL = 300


class MalformedReply(ValueError):
    """A reply that is not what the chat interface promises."""


def status_of(reply: httpx.Response) -> CallStatus:
    """What an HTTP status means for the request."""
    if reply.is_success:
        return CallStatus.OK
    if reply.status_code == 429:
        return CallStatus.RATE_LIMITED
    if reply.status_code in {401, 403, 404}:
        return CallStatus.UNAUTHORIZED
    if reply.status_code in {408, 425} or reply.status_code >= 500:
        return CallStatus.SERVER_ERROR
    return CallStatus.REFUSED


def retry_after(reply: httpx.Response) -> float | None:
    """Seconds that the server asks to wait (a number or a date, RFC 9110 section 10.2.3), None if it asks nothing."""
    value = reply.headers.get("retry-after", "").strip()
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def detail_of(reply: httpx.Response) -> str:
    """The beginning of an error's body, for people."""
    return " ".join(reply.text.split())[:_DETAIL]


def read_reply(body: str) -> tuple[CallStatus, ChatReply]:
    """The reply in a successful response's body: ok, or truncated if it reached max_tokens.

    Raises:
        MalformedReply: no JSON, no choice, a message without text or calls, a call without a name.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedReply(f"not JSON: {body[:80]!r}") from error
    choice = _first_choice(document)
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise MalformedReply("the choice has no message")
    finish = choice.get("finish_reason")
    reply = ChatReply(
        content=_text(message, "content"),
        reasoning=_text(message, "reasoning_content") or _text(message, "reasoning"),
        tool_calls=tuple(_tool_call(call, number) for number, call in enumerate(_calls(message))),
        finish_reason=finish if isinstance(finish, str) else "",
        model=document["model"] if isinstance(document.get("model"), str) else "",
        tokens=_tokens(document.get("usage")),
    )
    truncated = reply.finish_reason == "length"
    if not (reply.content.strip() or reply.tool_calls or truncated):
        raise MalformedReply("the message has neither text nor tool calls")
    return (CallStatus.TRUNCATED if truncated else CallStatus.OK), reply


def _first_choice(document: Any) -> Mapping[str, Any]:
    choices = document.get("choices") if isinstance(document, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise MalformedReply(f"no choices in {str(document)[:80]!r}")
    return choices[0]


def _text(message: Mapping[str, Any], field: str) -> str:
    """A text field; a list of parts (`[{"type": "text", "text": ...}]`) is joined."""
    value = message.get(field)
    if isinstance(value, list):
        value = "".join(str(part.get("text") or "") for part in value if isinstance(part, Mapping))
    if value is not None and not isinstance(value, str):
        raise MalformedReply(f"{field} is {type(value).__name__}, not text")
    return value or ""


def _calls(message: Mapping[str, Any]) -> list[Any]:
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise MalformedReply("tool_calls is no list")
    return calls


def _tool_call(call: Any, number: int) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise MalformedReply(f"tool call {number} has no function name")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):  # some servers send the object itself
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    identity = call.get("id")
    return ToolCall(
        id=identity if isinstance(identity, str) and identity else f"call_{number}", name=name, arguments=arguments
    )


def _tokens(usage: Any) -> Tokens:
    counts = usage if isinstance(usage, Mapping) else {}
    return Tokens(prompt=_count(counts.get("prompt_tokens")), completion=_count(counts.get("completion_tokens")))


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
