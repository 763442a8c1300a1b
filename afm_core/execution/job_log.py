"""The log of a Ray job: events and log lines in one stream, told apart and read once.

A job has a single log, into which standard output and standard error of all its processes go. The stage writes each
event as one line that begins with its attempt's own mark (`@afm-RANDOM `), in one write and after a line break, so that
neither half a line of another process nor a tool's result that looks like an event is taken for one. A log that is read
again from its beginning (the connection broke) continues where the reader was.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

from afm_core.execution.events import Event, decode

EVENT_MARK = "AFM_EVENT_MARK"
"""Environment variable of a job: what its event lines begin with."""


class JobLog:
    """Splits the log of one job. `take` may be called with overlapping pieces.

    Args:
        mark: what event lines begin with.
        path: a local copy of the log lines (appended to).
    """

    def __init__(self, mark: str, path: Path, on_event: Callable[[Event], None], on_log: Callable[[str], None]) -> None:
        self.last: Event | None = None
        self._mark = f"{mark} "
        self._path = path
        self._on_event = on_event
        self._on_log = on_log
        self._seen = 0
        self._rest = ""

    def take(self, position: int, text: str) -> None:
        """Read what `text`, which begins at character `position` of the log, has that is new."""
        assert position <= self._seen, "a piece of the log is missing"
        fresh = text[self._seen - position :]
        self._seen += len(fresh)
        *lines, self._rest = (self._rest + fresh).split("\n")
        self._pass_on(lines)

    def close(self) -> None:
        """The log has ended: a last line without a line break counts too."""
        rest, self._rest = self._rest, ""
        self._pass_on([rest])

    def note(self, text: str) -> None:
        """Add a line of our own."""
        self._pass_on([text])

    def _pass_on(self, lines: list[str]) -> None:
        shown = [line for line in lines if line and not self._is_event(line)]
        if not shown:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as log:
            log.write("".join(f"{line}\n" for line in shown))
        for line in shown:
            self._on_log(line)

    def _is_event(self, line: str) -> bool:
        if not line.startswith(self._mark):
            return False
        with contextlib.suppress(ValueError):
            event = decode(line[len(self._mark) :])
            self.last = event
            self._on_event(event)
            return True
        return False
