"""Ends a process that makes no progress, and says where it stood.

A training that hangs (a collective that waits for a dead rank, a lock) raises nothing and would hold its machine for
ever. The interpreter's own watchdog thread needs no lock of Python's: it writes every thread's stack and exits.
"""

import faulthandler
import logging
from pathlib import Path

from afm_core.training.errors import TrainingWorkerDied

_LOG = logging.getLogger(__name__)

STACKS = "stacks.txt"
"""Name of the file with the stacks, in the channel's directory."""


class Watchdog:
    """Ends this process (exit code 1) if `beat` is not called for `seconds`; stacks go to `path` first."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._file = path.open("w")
        self._seconds = seconds
        self.beat()

    def beat(self) -> None:
        """There was progress."""
        faulthandler.dump_traceback_later(self._seconds, exit=True, file=self._file)

    def close(self) -> None:
        """Stop watching."""
        faulthandler.cancel_dump_traceback_later()
        self._file.close()


def explained(error: TrainingWorkerDied, stacks: Path) -> TrainingWorkerDied:
    """A worker's death, or, if it was the watchdog that ended it, where it stood; the stacks go to the log."""
    text = stacks.read_text() if stacks.exists() else ""
    if "Timeout" not in text:
        return error
    _LOG.error("no progress within rollout.stall_seconds; the stacks of the worker:\n%s", text)
    place = next((line.strip() for line in text.splitlines() if "afm_core" in line), "a place outside this project")
    return TrainingWorkerDied(f"rl made no progress within rollout.stall_seconds; it stood at {place}")
