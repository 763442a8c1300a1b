"""What both ways to run a stage share (a local process, a Ray job): the verdict at its end, and stopping all of them.

A run that is cancelled or interrupted stops what it started, whatever that is and wherever it runs.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from afm_core.config import ConfigError
from afm_core.execution.events import Event, Failed, FailureKind, Finished

GRACE_SECONDS = 20.0
"""From the request to stop to the kill: what a stage has to seal a checkpoint."""


class StageFailed(RuntimeError):
    """A stage did not produce an artifact. `kind` says whether a retry makes sense; `stage` is its label, if known."""

    def __init__(self, message: str, kind: FailureKind, stage: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.stage = stage


class Stoppable:
    """One stage at work. `asked` is set once somebody wants it to end."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.asked = threading.Event()
        self._stop = stop

    def stop(self) -> None:
        """Ask it to end, and return when it has (or cannot be reached). May be called twice."""
        self.asked.set()
        self._stop()


_active: set[Stoppable] = set()
_active_lock = threading.Lock()


@contextmanager
def stoppable(stop: Callable[[], None]) -> Iterator[Stoppable]:
    """Within the block `stop_all` reaches this stage, by calling `stop` from another thread."""
    one = Stoppable(stop)
    with _active_lock:
        _active.add(one)
    try:
        yield one
    finally:
        with _active_lock:
            _active.discard(one)


def stop_all() -> None:
    """Stop every stage of this process (a run that is cancelled or interrupted), all at once."""
    with _active_lock:
        threads = [threading.Thread(target=one.stop) for one in _active]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def verdict(final: Event | None, succeeded: bool, death: StageFailed, log: str) -> Finished:
    """The artifact of a stage that has ended, else its failure.

    Args:
        final: the last event it sent. succeeded: its process ended with exit code 0.
        death: what to raise if it did not say itself why it failed. log: where to read on.

    Raises:
        ConfigError: the stage refused its configuration or input. StageFailed: anything else, with the cause.
    """
    if isinstance(final, Finished) and succeeded:
        return final
    if death.kind is FailureKind.TIMEOUT:
        raise death
    if isinstance(final, Failed):
        if final.kind is FailureKind.CONFIGURATION:
            raise ConfigError(final.message)
        raise StageFailed(f"{final.message} (log: {log})", final.kind)
    raise death
