"""What a run shows in the terminal: one line a stage, live progress where the terminal can redraw a line.

A run outlives who reads it: a terminal that was closed, or a worker that was killed, costs the lines and nothing else.
"""

import logging
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import ClassVar

from prefect.logging.handlers import PrefectConsoleHandler

from afm_core.execution import StageRecord, duration

_QUIET_SECONDS = 10.0


class Console:
    """Writes to standard error; on a terminal progress redraws one line, elsewhere it is a line every 10 s."""

    _current: ClassVar["Console | None"] = None

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._last = 0.0
        self._open_line = False

    @classmethod
    def current(cls) -> "Console":
        """The process's console."""
        if cls._current is None:
            cls._current = cls()
        return cls._current

    def progress(self, stage: str, done: int, total: int, message: str, seconds_left: float | None = None) -> None:
        """Show how far a stage is, and how long it still takes if that is known."""
        left = "" if seconds_left is None else f"{duration(seconds_left)} left  "
        text = f"  {stage:<18} {done:>6}/{total:<6} {left}{message}"
        with self._lock:
            if self._live:
                _write(f"\r\x1b[K{text[:110]}")
                self._open_line = True
            elif time.monotonic() - self._last >= _QUIET_SECONDS or done == total:
                self._last = time.monotonic()
                _write(f"{text.rstrip()}\n")

    def note(self, stage: str, text: str) -> None:
        """One line about a stage."""
        self._line(f"  {stage:<18} {text}")

    def finished(self, record: StageRecord) -> None:
        """One line for a finished stage."""
        mark = "cached" if record.cached else f"{record.seconds:.1f} s"
        self._line(f"✓ {record.name:<18} {mark:>9}  {record.artifact.kind}:{record.artifact.digest[:12]}")

    def _line(self, text: str) -> None:
        with self._lock:
            _write(f"\r\x1b[K{text}\n" if self._open_line else f"{text}\n")
            self._open_line = False


def outlive_reader() -> None:
    """Let Prefect's log lines be lost when nobody reads them any more: its console would end the process instead."""
    named = [one for one in logging.Logger.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    for handler in {handler for logger in (logging.getLogger(), *named) for handler in logger.handlers}:
        if isinstance(handler, PrefectConsoleHandler):
            fall_silent = partial(setattr, handler.console, "quiet", True)
            handler.console.on_broken_pipe = fall_silent  # type: ignore[method-assign]


def _write(text: str) -> None:
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()
