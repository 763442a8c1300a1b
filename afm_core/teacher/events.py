"""What the teacher's agents did, as events: one an activation, in the order of time.

An event holds the agent's reasoning state before it acts (`thought`), what it put out (`content`) and, for a
tool call, what came back. That is all a conversion needs (arXiv 2508.13167, section on multi-agent
distillation: the activation, the state before it and its output are recorded at each step). No times: equal
runs give equal events.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Self

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, model_validator

from afm_core.config import GrammarName
from afm_core.data import TOOL_TAGS, Status, Tag, text_sha256
from afm_core.tools.protocol import ToolStatus

SOURCE = "solution_teacher"
"""The `source` of every trajectory made here: it knows the solution path and is no language model."""

TEAM_SOURCE = "team:"
"""The `source` of what a team of language models demonstrated is this and the model that played the team."""


class Role(StrEnum):
    """The agents of the teacher."""

    PLANNER = "planner"
    SEARCHER = "searcher"
    READER = "reader"
    REFLECTOR = "reflector"
    VERIFIER = "verifier"


class MistakeKind(StrEnum):
    """The mistake that was injected into a run."""

    NONE = "none"
    """No mistake."""
    WRONG_QUERY = "wrong_query"
    """A query for another relation, or with a word dropped; reflection, then the page in view or a better query."""
    HARMLESS = "harmless"
    """A wrong query that found the value all the same: not trained, and nothing to recover from."""
    WRONG_PAGE = "wrong_page"
    """Another result's page is read; reflection finds it to be about something else, and the plan is
    renewed."""
    PREMATURE_ANSWER = "premature_answer"
    """A value on the way is suggested as the answer; double_check rates it low, and the plan is renewed."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Event(_Frozen):
    """One activation of one agent. `kind` is the element it becomes; `parent` the event whose output it acted
    upon.

    `mistake` covers the thought and the content, never the observation (that is the tool's).
    """

    id: str
    role: Role
    kind: Tag
    thought: str = ""
    content: str
    parent: str | None = None
    tool: str | None = None
    argument: str | None = None
    tool_status: ToolStatus | None = None
    observation: str | None = None
    observation_sha256: str | None = None
    mistake: bool = False

    @model_validator(mode="after")
    def _observation_belongs_to_a_tool(self) -> Self:
        if (self.kind in TOOL_TAGS) != (self.observation is not None):
            raise ValueError(f"event {self.id}: a tool call has an observation, anything else has none")
        expected = None if self.observation is None else text_sha256(self.observation)
        if self.observation_sha256 != expected:
            raise ValueError(f"event {self.id}: observation_sha256 does not match the observation")
        return self


class Recording(_Frozen):
    """One run of the teacher on one task. `failure` says in words why a run did not complete, else empty."""

    task_id: str
    question: str
    grammar: GrammarName
    events: tuple[Event, ...]
    status: Status
    answer: str | None = None
    mistake: MistakeKind = MistakeKind.NONE
    failure: str = ""


EVENT_SCHEMA = pa.schema(
    [
        *[(name, pa.string()) for name in ("id", "task_id", "role", "kind", "thought", "content", "parent", "tool")],
        *[(name, pa.string()) for name in ("argument", "tool_status", "observation", "observation_sha256")],
        ("mistake", pa.bool_()),
    ],
    metadata={"afm.schema": "event", "afm.schema_version": "1"},
)


def event_id(task_id: str, position: int) -> str:
    """Name of a run's event: ids of one task sort in the order of time."""
    return f"{task_id}-{position:03d}"


def events_table(recordings: Iterable[Recording]) -> pa.Table:
    """All events of the recordings as a canonical table, sorted by id."""
    rows = [
        {**event.model_dump(mode="json"), "task_id": recording.task_id}
        for recording in recordings
        for event in recording.events
    ]
    return pa.Table.from_pylist(sorted(rows, key=lambda row: row["id"]), schema=EVENT_SCHEMA)
