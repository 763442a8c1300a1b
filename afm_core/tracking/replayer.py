"""Replays the spool in the background while a run goes on, so that MLflow's pages show it live."""

import threading
from pathlib import Path

from afm_core.config import TrackingConfig
from afm_core.tracking.client import tracking_uri
from afm_core.tracking.replay import ReplayReport, replay


class Replayer:
    """A daemon thread that replays every `interval` seconds. No method raises; without tracking none does
    anything.

    Args:
        directory: the spool directory.
        config: where MLflow is, and whether tracking is on.
        run: the pipeline run's id; `close` ends its MLflow runs.
        interval: seconds between replays.
        first: seconds until the first replay, where it should come sooner; they are doubled up to `interval`.
    """

    def __init__(
        self,
        directory: Path,
        config: TrackingConfig,
        run: str | None = None,
        interval: float = 20.0,
        first: float | None = None,
    ) -> None:
        self.last: ReplayReport | None = None
        self._directory = directory
        self._config = config
        self._run = run
        self._interval = interval
        self._first = interval if first is None else min(first, interval)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; a second call does nothing."""
        if self._config.enabled and self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="afm-replay", daemon=True)
            self._thread.start()

    def close(self, timeout: float = 60.0) -> ReplayReport | None:
        """One last replay, for at most `timeout` seconds; what does not get through stays in the spool."""
        if not self._config.enabled:
            return None
        self.start()
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)
        return self.last

    def _loop(self) -> None:
        wait = self._first
        while not self._stop.wait(wait):
            self.last = self._once(None)
            wait = min(2 * wait, self._interval)
        self.last = self._once(self._run)

    def _once(self, ended: str | None) -> ReplayReport:
        return replay(self._directory, tracking_uri(self._config), self._config.experiment, ended)
