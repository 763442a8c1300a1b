"""What a run makes of a stage's reports: an estimate of the time left, and a note in its record now and then.

Whoever listens is told of every event and every line. A listener that fails (a server that shows progress is away)
never fails the stage: nothing may depend on being watched.
"""

import logging
import time
from collections.abc import Callable

from afm_core.execution.events import Event, Progress
from afm_core.execution.pace import Pace
from afm_core.execution.runs import StageProgress

Listener = Callable[[str, Event], None]
LogListener = Callable[[str, str], None]

_log = logging.getLogger(__name__)

NOTE_SECONDS = 5.0
"""Between two notes of progress in the record."""


class Observer:
    """One stage's reports on their way up. `note` gets (label, progress) at most every NOTE_SECONDS."""

    def __init__(
        self, label: str, on_event: Listener, on_log: LogListener, note: Callable[[str, StageProgress], None]
    ) -> None:
        self._label = label
        self._on_event = on_event
        self._on_log = on_log
        self._note = note
        self._pace: Pace | None = None
        self._started = time.monotonic()
        self._noted = float("-inf")
        self._deaf = False

    def event(self, event: Event) -> None:
        """Pass an event on; progress gets its estimate."""
        if isinstance(event, Progress):
            event = self._estimated(event)
        self._tell(lambda: self._on_event(self._label, event))

    def log(self, line: str) -> None:
        """Pass a log line on."""
        self._tell(lambda: self._on_log(self._label, line))

    def _tell(self, telling: Callable[[], None]) -> None:
        try:
            telling()
        except Exception as error:  # noqa: BLE001 - whoever watches must not stop the work; it is said once
            if not self._deaf:
                self._deaf = True
                _log.warning("stage %s: its progress cannot be shown: %s: %s", self._label, type(error).__name__, error)

    def _estimated(self, event: Progress) -> Progress:
        now = time.monotonic()
        pace = self._pace
        self._pace = pace.advanced(event.done, event.total, now) if pace else Pace(event.done, event.total, now)
        event = event.model_copy(update={"seconds_left": self._pace.seconds_left})
        if now - self._noted >= NOTE_SECONDS:
            self._noted = now
            progress = StageProgress(**event.model_dump(exclude={"event"}), seconds=round(now - self._started, 1))
            self._tell(lambda: self._note(self._label, progress))
        return event
