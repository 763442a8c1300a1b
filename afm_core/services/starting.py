"""Starting servers side by side and waiting until each is healthy."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from afm_core.services import processes
from afm_core.services.catalogue import CATALOGUE, Setup, directory_of
from afm_core.services.state import ServiceName, ServiceRecord

_POLL_SECONDS = 0.25
_LOG_BYTES = 10_000_000
_TAIL_LINES = 15
_TAIL_BYTES = 20_000


class StartFailed(Exception):
    """A server did not become healthy. `tail`: the last lines it wrote."""

    def __init__(self, name: ServiceName, reason: str, log: Path, tail: list[str]) -> None:
        super().__init__(f"{name} {reason}; all of its output is in {log}")
        self.name = name
        self.tail = tail


class Starter:
    """Starts servers of one stack. `started`: by name, what this object has started so far."""

    def __init__(self, setup: Setup, stack: str, joined: str, progress: Callable[[str], None]) -> None:
        self.started: dict[ServiceName, ServiceRecord] = {}
        self._setup = setup
        self._stack = stack
        self._joined = joined
        self._progress = progress
        self._processes: dict[ServiceName, subprocess.Popen[bytes]] = {}
        self._begins: dict[ServiceName, tuple[float, int]] = {}

    def run(self, names: Collection[ServiceName], on_started: Callable[[], None]) -> None:
        """Start them all, each as soon as what it needs is healthy; `on_started` is called after each start.

        Raises:
            StartFailed: one ended, or was not healthy in time. The others are left as they are.
        """
        waiting, starting = sorted(names), list[ServiceName]()
        while waiting or starting:
            for name in [one for one in waiting if not set(CATALOGUE[one].needs) & {*waiting, *starting}]:
                waiting.remove(name)
                starting.append(name)
                self._start(name)
                on_started()
            starting = [name for name in starting if not self._is_healthy(name)]
            time.sleep(_POLL_SECONDS if starting else 0)

    def _start(self, name: ServiceName) -> None:
        service, places = CATALOGUE[name], self._setup.places
        log = places.log(name)
        command, environment = service.command(self._setup), service.environment(self._setup)
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"=== afm up started {name} at {now}\n")
        self._begins[name] = time.monotonic(), log.stat().st_size
        mark = f"{self._stack}/{name}"
        process = processes.launch(command, environment, mark, directory_of(service, places), log)
        self._processes[name] = process
        self.started[name] = ServiceRecord(
            pid=process.pid,
            start=processes.start_of(process.pid) or 0.0,
            ports={port: self._setup.ports[port] for port in service.ports},
            since=now,
            joined=self._joined if service.joins else "",
        )

    def _is_healthy(self, name: ServiceName) -> bool:
        seconds = time.monotonic() - self._begins[name][0]
        code = self._processes[name].poll()
        if code is not None:
            raise self._failed(name, f"ended while it started: {_ending(code)}")
        problem = CATALOGUE[name].check(self._setup)
        if problem is None:
            self._progress(f"{name}: healthy after {seconds:.0f} s, {CATALOGUE[name].url(self._setup)}")
            return True
        if seconds > self._setup.options.start_seconds:
            raise self._failed(name, f"was not healthy after {seconds:.0f} s ({problem})")
        return False

    def _failed(self, name: ServiceName, reason: str) -> StartFailed:
        log = self._setup.places.log(name)
        return StartFailed(name, reason, log, _tail(log, self._begins[name][1]))


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def _tail(log: Path, offset: int) -> list[str]:
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(offset, size - _TAIL_BYTES))
        return stream.read().decode("utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
