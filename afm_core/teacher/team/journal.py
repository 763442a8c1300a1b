"""The journal: events in the order of the plan, whichever of several parallel branches was faster.

A branch numbers its own events, so that an id says nothing of the clock: `TASK-r0/1.2.3` is the fourth event of
sub-task 2 of plan 1. A child's events stand where the child was opened.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from afm_core.teacher.team.record import TeamEvent


@dataclass
class Journal:
    """One branch of a rollout's record. `began` is the loop's time when the rollout began."""

    name: str
    began: float
    subtask: str = ""
    attempt: int = 0
    _entries: list["TeamEvent | Journal"] = field(default_factory=list)
    _numbers: int = 0

    def child(self, name: str, subtask: str) -> "Journal":
        """A branch for a sub-task, in its place among this one's events. Its owner counts `attempt` up."""
        branch = Journal(f"{self.name}/{name}", self.began, subtask)
        self._entries.append(branch)
        return branch

    def next_id(self) -> str:
        """The name of the event that is written next."""
        return f"{self.name}.{self._numbers}"

    def write(self, started: float, **fields: Any) -> TeamEvent:
        """Add an event; `started` is the loop's time when it began."""
        event = TeamEvent(
            id=self.next_id(),
            subtask=self.subtask,
            attempt=self.attempt,
            started=round(started - self.began, 4),
            **fields,
        )
        self._entries.append(event)
        self._numbers += 1
        return event

    def last(self) -> str | None:
        """The name of this branch's own latest event."""
        return f"{self.name}.{self._numbers - 1}" if self._numbers else None

    def events(self) -> Iterator[TeamEvent]:
        """All events so far, children's in their places."""
        for entry in self._entries:
            if isinstance(entry, Journal):
                yield from entry.events()
            else:
                yield entry

    @staticmethod
    def now() -> float:
        """The loop's time."""
        return asyncio.get_running_loop().time()
