"""The vocabulary of chat: what is asked of a language model, what it answered, and what the asking took.

Everything here is recorded whole, so that a run can be read and replayed from its record: a request's `body` is the
exact JSON that a server was sent. An exchange without a usable reply has a status other than ok and says why.
"""

import hashlib
import json
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ChatRole(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(_Frozen):
    """A call that a model asked for; `arguments` is its JSON text, unchecked."""

    id: str
    name: str
    arguments: str


class Message(_Frozen):
    """One message. `tool_calls` belong to an assistant's, `tool_call_id` to a tool's."""

    role: ChatRole
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def wire(self) -> dict[str, Any]:
        """The message as a server takes it."""
        document: dict[str, Any] = {"role": self.role.value, "content": self.content}
        if self.tool_calls:
            document["tool_calls"] = [
                {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
                for one in self.tool_calls
            ]
        if self.tool_call_id is not None:
            document["tool_call_id"] = self.tool_call_id
        return document


class ToolSpec(_Frozen):
    """A tool that a model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any]

    def wire(self) -> dict[str, Any]:
        """The tool as a server takes it."""
        return {"type": "function", "function": self.model_dump(mode="json")}


class Sampling(_Frozen):
    """How a reply is sampled. A temperature of 0 is greedy."""

    temperature: float = 0.7
    top_p: float = 1.0
    max_tokens: int = 1024
    seed: int = 0


class ChatRequest(_Frozen):
    """One request. `response_format` is sent as it is, None is not sent."""

    model: str
    messages: tuple[Message, ...] = Field(min_length=1)
    sampling: Sampling = Sampling()
    tools: tuple[ToolSpec, ...] = ()
    response_format: dict[str, Any] | None = None

    def body(self) -> dict[str, Any]:
        """The JSON that is sent."""
        document: dict[str, Any] = {
            "model": self.model,
            "messages": [one.wire() for one in self.messages],
            **self.sampling.model_dump(mode="json"),
        }
        if self.tools:
            document["tools"] = [one.wire() for one in self.tools]
        if self.response_format is not None:
            document["response_format"] = self.response_format
        return document

    def digest(self) -> str:
        """SHA-256 of the body: equal requests have equal digests."""
        text = json.dumps(self.body(), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class CallStatus(StrEnum):
    """How an exchange, or one attempt at it, ended."""

    OK = "ok"
    """A whole reply."""
    TRUNCATED = "truncated"
    """The reply reached max_tokens: what is there is kept, calls in it are not to be trusted."""
    RATE_LIMITED = "rate_limited"
    """The server was busy (429)."""
    SERVER_ERROR = "server_error"
    """The server failed (5xx)."""
    UNREACHABLE = "unreachable"
    """No connection, or one that broke in the middle of a reply."""
    TIMEOUT = "timeout"
    """No whole reply within the endpoint's time limit."""
    MALFORMED = "malformed"
    """A reply that is not what the interface promises."""
    REFUSED = "refused"
    """The server refused this request (another 4xx: too long, for example); asking again is useless."""
    UNAUTHORIZED = "unauthorized"
    """The server refused the key, or does not know the model (401, 403, 404)."""


USABLE: frozenset[CallStatus] = frozenset({CallStatus.OK, CallStatus.TRUNCATED})
"""A reply is there."""

PASSING: frozenset[CallStatus] = frozenset(
    {
        CallStatus.RATE_LIMITED,
        CallStatus.SERVER_ERROR,
        CallStatus.UNREACHABLE,
        CallStatus.TIMEOUT,
        CallStatus.MALFORMED,
    }
)
"""Failures that another attempt may not have."""


class Tokens(_Frozen):
    """Tokens of one reply as the server counts them; zeros if it does not."""

    prompt: int = 0
    completion: int = 0


class Attempt(_Frozen):
    """One attempt: where, how it ended, seconds on the wire, and seconds waited for a turn before it."""

    endpoint: str
    status: CallStatus
    http_status: int | None = None
    seconds: float = 0.0
    waited: float = 0.0
    detail: str = ""


class ChatReply(_Frozen):
    """What a model said. `reasoning` is what a reasoning model shows apart from its answer."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = ""
    model: str = ""
    tokens: Tokens = Tokens()


class Exchange(_Frozen):
    """A request, its reply (None: there is none) and every attempt; `cost` at the answering endpoint's prices."""

    request: ChatRequest
    status: CallStatus
    reply: ChatReply | None = None
    cost: float = 0.0
    attempts: tuple[Attempt, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds from the first attempt's turn to the end, pauses between attempts left out."""
        return sum(one.seconds + one.waited for one in self.attempts)
