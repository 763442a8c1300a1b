"""Which row of the slot cache belongs to whom, and what every row already knows.

A row remembers the ids whose keys and values it holds, also after its session is gone: a later prompt that begins with
the same ids (the shared instruction, few-shot examples, another sample of the same task) starts from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Row:
    """One row. `ids` are cached; `session` keeps it between turns; `busy` while a request runs in it."""

    index: int
    ids: list[int] = field(default_factory=list)
    session: str | None = None
    busy: bool = False
    used: int = 0


class RowTable:
    """Hands rows to requests: a session's own row, a free one, or the idle session's that waited longest."""

    def __init__(self, rows: int) -> None:
        self.rows = [Row(index) for index in range(rows)]
        self._of_session: dict[str, Row] = {}
        self._clock = 0

    def acquire(self, session: str | None, prompt: Sequence[int]) -> Row | None:
        """A row for a request, or None while there is none (or the session's previous request still runs)."""
        row = self._of_session.get(session) if session is not None else None
        if row is None:
            row = self._free(prompt)
            if row is None:
                return None
            self.release(row.session)
            if session is not None:
                self._of_session[session] = row
            row.session = session
        elif row.busy:
            return None
        row.busy = True
        self._touch(row)
        return row

    def finish(self, row: Row) -> None:
        """The row's request is over; a session keeps the row."""
        row.busy = False
        self._touch(row)

    def release(self, session: str | None) -> None:
        """Forget a session; its row is free (what it knows stays useful)."""
        row = self._of_session.pop(session, None) if session is not None else None
        if row is not None:
            row.session = None

    def clear(self) -> None:
        """Forget everything."""
        self._of_session.clear()
        for row in self.rows:
            row.ids, row.session, row.busy = [], None, False

    def of_session(self, session: str) -> Row | None:
        """The row that a session holds."""
        return self._of_session.get(session)

    def _free(self, prompt: Sequence[int]) -> Row | None:
        free = [row for row in self.rows if not row.busy and row.session is None]
        if free:
            return max(free, key=lambda row: (common_prefix(row.ids, prompt), -row.index))
        idle = [row for row in self.rows if not row.busy]
        return min(idle, key=lambda row: row.used) if idle else None

    def _touch(self, row: Row) -> None:
        self._clock += 1
        row.used = self._clock


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    limit = min(len(left), len(right))
    if list(left[:limit]) == list(right[:limit]):
        return limit
    return next(index for index in range(limit) if left[index] != right[index])
