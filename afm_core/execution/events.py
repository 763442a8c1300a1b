"""What a stage process tells its parent, one JSON object a line on its standard output.

Standard output carries events alone (libraries that print are redirected to standard error before a stage starts);
standard error carries log lines for people.
"""

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from afm_core.store import ArtifactRef


class FailureKind(StrEnum):
    """Why a stage did not produce an artifact."""

    CONFIGURATION = "configuration"
    """The user's mistake: never retried."""
    INFRASTRUCTURE = "infrastructure"
    """A service, the network, the disk or a worker failed: worth a retry."""
    FAILED = "failed"
    """The work itself failed: a retry would fail the same way."""
    INTERRUPTED = "interrupted"
    """Told to stop; sealed what it could."""
    DIED = "died"
    """The process ended without a word (signal, out of memory)."""
    TIMEOUT = "timeout"
    """Stopped by the parent after its time."""


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Progress(_Event):
    """How far the stage is. `seconds_left` is the run's estimate (the stage leaves it out), None while unknown."""

    event: Literal["progress"] = "progress"
    done: int
    total: int
    message: str = ""
    seconds_left: float | None = None


class Waiting(_Event):
    """Another live attempt holds the lease of this key."""

    event: Literal["waiting"] = "waiting"
    holder: str


class Submitted(_Event):
    """The stage is a Ray job; told by the run, not by the stage."""

    event: Literal["submitted"] = "submitted"
    job: str
    url: str


class Finished(_Event):
    """The artifact is committed.

    timings: seconds of the stage's process: `start` (interpreter and what every stage imports), `imports` (what this
    stage's function needs), `work` (the function).
    """

    event: Literal["finished"] = "finished"
    ref: ArtifactRef
    cached: bool
    metrics: dict[str, Any]
    timings: dict[str, float] = {}


class Failed(_Event):
    """The stage failed and says why."""

    event: Literal["failed"] = "failed"
    kind: FailureKind
    message: str


Event = Progress | Waiting | Submitted | Finished | Failed


class EventLine(BaseModel):
    """One line of a stage's standard output."""

    event: Event


def encode(event: Event) -> str:
    """One event as one line."""
    return EventLine(event=event).model_dump_json()


def decode(line: str) -> Event:
    """The event of a line; raises ValueError if it is none."""
    return EventLine.model_validate_json(line).event
