"""What a team did, as a stream of events: one an activation of an agent or a tool, in the order of the plan.

An event holds all of it: the exact messages that a model was sent, its sampling settings and seed, its reply, what the
team read in the reply (`data`), a tool's arguments, its observation and that text's hash, latency and tokens, the role,
the sub-task, and the event whose output it acted upon. A run is replayed from its recording alone (see replay.py).

The order is the plan's and not the clock's: parallel sub-tasks stand one after the other, so that equal runs have equal
recordings, whichever branch was faster. Times are kept apart (`without_times`), because no two runs share them.
"""

from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from afm_core.config import GrammarName
from afm_core.data import Status, Tag, text_sha256
from afm_core.engines.backbone import Exchange
from afm_core.tools.protocol import ToolStatus


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TeamRole(StrEnum):
    """The agents of a team."""

    PLANNER = "planner"
    """Writes facts and the plan, a graph of sub-tasks, and revises it."""
    EXECUTOR = "executor"
    """Works on one sub-task with tools."""
    CRITIC = "critic"
    """Scores a finished attempt at a sub-task; reflects on it if the score is low."""
    SUMMARISER = "summariser"
    """Keeps the notes short."""
    ANSWERER = "answerer"
    """Puts an answer forward."""
    VERIFIER = "verifier"
    """Checks the answer against the notes."""


class Activation(StrEnum):
    """What an agent did."""

    PLAN = "plan"
    REVISE = "revise"
    TURN = "turn"
    """A model turn of an executor; its calls follow as events of their own."""
    CALL = "call"
    """One tool call."""
    REVIEW = "review"
    SUMMARISE = "summarise"
    SUGGEST = "suggest"
    CHECK = "check"


class Question(_Frozen):
    """All that a team is given of a task. The answers are not part of it, nor anything derived from them."""

    task_id: str
    text: str = Field(min_length=1)
    grammar: GrammarName


class CallRecord(_Frozen):
    """One tool call. `argument` is what the tool was given, None if the call was malformed and never dispatched."""

    id: str
    name: str
    arguments: str
    tag: Tag | None = None
    argument: str | None = None
    thought: str = ""
    remark: str = ""
    """What the agent says of the result before (code profile)."""
    status: ToolStatus
    observation: str
    observation_sha256: str
    seconds: float = 0.0

    @model_validator(mode="after")
    def _hash_fits(self) -> Self:
        if self.observation_sha256 != text_sha256(self.observation):
            raise ValueError(f"call {self.id}: observation_sha256 does not match the observation")
        return self


class TeamEvent(_Frozen):
    """One activation. A model's has an `exchange`, a tool's a `call`.

    `data` is what was read in the reply, None where it could not be read: then `problem` says why, and the agent was
    asked again. `subtask` is empty on the main line; `started` is in seconds since the rollout began.
    """

    id: str
    parent: str | None
    role: TeamRole
    activation: Activation
    subtask: str = ""
    attempt: int = 0
    exchange: Exchange | None = None
    data: dict[str, Any] | None = None
    problem: str = ""
    call: CallRecord | None = None
    started: float = 0.0

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.activation is Activation.CALL) != (self.call is not None) or (self.call is None) == (
            self.exchange is None
        ):
            raise ValueError(f"event {self.id}: a call has a tool's record, every other event a model's exchange")
        return self


class ToolCard(_Frozen):
    """A tool as the team was told of it."""

    tag: Tag
    name: str
    description: str


class TeamRecording(_Frozen):
    """One rollout of a team on one question. `failure` says in words why it did not complete, else empty."""

    question: Question
    tools: tuple[ToolCard, ...]
    rollout: int
    model: str
    seed: int
    tips: tuple[str, ...] = ()
    events: tuple[TeamEvent, ...] = ()
    status: Status
    answer: str | None = None
    failure: str = ""

    @property
    def id(self) -> str:
        """Names the rollout among all of a stage."""
        return rollout_id(self.question.task_id, self.rollout)

    def without_times(self) -> Self:
        """The same recording with every time and every attempt's place left out: equal for equal runs."""
        return self.model_copy(update={"events": tuple(map(_timeless, self.events))})


def rollout_id(task_id: str, rollout: int) -> str:
    """The name of a rollout."""
    return f"{task_id}-r{rollout}"


def _timeless(event: TeamEvent) -> TeamEvent:
    exchange, call = event.exchange, event.call
    return event.model_copy(
        update={
            "started": 0.0,
            "exchange": exchange and exchange.model_copy(update={"attempts": ()}),
            "call": call and call.model_copy(update={"seconds": 0.0}),
        }
    )
