"""What a tool is: one asynchronous-friendly call with a typed result. A malformed call is never dispatched."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class ToolStatus(StrEnum):
    """How a tool call ended."""

    OK = "ok"
    BAD_ARGUMENTS = "bad_arguments"
    NOT_FOUND = "not_found"
    RATE_LIMITED = "rate_limited"
    TIMEOUT = "timeout"
    INFRA_ERROR = "infra_error"
    REFUSED = "refused"


@dataclass(frozen=True)
class ToolResult:
    """Result of one call. `text` is what the policy will observe (errors too); seconds is wall-clock time."""

    status: ToolStatus
    text: str
    truncated: bool = False
    seconds: float = 0.0
    cached: bool = False


class Tool(Protocol):
    """A tool. Called from worker threads; must be thread-safe and must not raise for bad arguments."""

    name: str
    description: str

    def call(self, argument: str) -> ToolResult:
        """Run the tool on the text between its tags."""
        ...
