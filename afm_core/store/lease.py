"""Who works on a key: leases by conditional create, heartbeats by counter, and when a holder counts as dead.

A holder on this host is dead at once when its process (pid, start time, boot) is gone; a zombie is gone too.
A holder elsewhere is dead when its heartbeat counter has not moved for DEAD_AFTER seconds on the *observer's*
monotonic clock: no two clocks are ever compared. A wrong verdict costs work, never validity: every attempt
writes below its own epoch, and the pointer's conditional create picks one winner.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from afm_core.store.backend import Backend
from afm_core.store.crash import crash_point
from afm_core.store.errors import StoreError
from afm_core.store.manifests import epoch_path


@dataclass(frozen=True)
class Timing:
    """Seconds, and the clock and sleep to use (tests inject their own)."""

    heartbeat: float = 3.0
    dead_after: float = 15.0
    poll: float = 0.5
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Process:
    """This or another process, so that it can be told from a later one with the same pid."""

    host: str = "?"
    machine: str = ""
    boot: str = ""
    namespace: str = ""
    pid: int = 0
    started: str = ""


@dataclass(frozen=True)
class Holder:
    """A lease as recorded: which attempt holds the key since which epoch, towards which generation, from
    where.

    `inputs` are the URIs it reads: garbage collection leaves them alone while it lives.
    """

    key: str
    epoch: int
    attempt: str = "?"
    generation: int = 0
    inputs: tuple[str, ...] = ()
    process: Process = field(default_factory=Process)

    def __str__(self) -> str:
        return f"attempt {self.attempt} (epoch {self.epoch}, process {self.process.pid} on {self.process.host})"


def this_process() -> Process:
    """The identity of the calling process."""
    return Process(
        host=socket.gethostname(),
        machine=_read("/etc/machine-id"),
        boot=_read("/proc/sys/kernel/random/boot_id") or str(psutil.boot_time()),
        namespace=_pid_namespace(),
        pid=os.getpid(),
        started=_start_time(os.getpid()) or "",
    )


def gone(process: Process) -> bool | None:
    """True: that process has ended. False: it lives. None: it is elsewhere and cannot be seen from here."""
    here = this_process()
    if process.host != here.host:
        return None
    if process.boot != here.boot:  # rebooted, if it is the same machine; else another machine of the same name
        return True if process.machine and process.machine == here.machine else None
    if process.namespace != here.namespace:
        return None
    return _start_time(process.pid) != process.started


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """Start of a live process: ticks since boot on Linux (no clock can shift them), else seconds; None if it
    ended.
    """
    stat = _read(f"/proc/{pid}/stat")
    if stat:
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.Error:
        return None


class Leases:
    """The leases of a store, and one observer's view of who is alive."""

    def __init__(self, backend: Backend, timing: Timing) -> None:
        self._backend = backend
        self._timing = timing
        self._seen: dict[tuple[str, int], tuple[bytes | None, float]] = {}

    def epochs(self, key: str) -> list[int]:
        """Epochs that were ever leased, ascending."""
        names = self._backend.names(_directory(key))
        return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit())

    def holder(self, key: str, epoch: int) -> Holder:
        """The recorded holder of an epoch; an unreadable record gives an unknown holder, judged by its
        heartbeat.
        """
        try:
            record = json.loads(self._backend.read(_record(key, epoch)) or b"{}")
            process = Process(**record.pop("process"))
            return Holder(**{**record, "inputs": tuple(record["inputs"]), "process": process})
        except (ValueError, KeyError, TypeError):
            return Holder(key=key, epoch=epoch)

    def newest(self, key: str) -> Holder | None:
        """The holder of the newest epoch, dead or alive."""
        epochs = self.epochs(key)
        return self.holder(key, epochs[-1]) if epochs else None

    def take(self, holder: Holder) -> bool:
        """Claim the holder's epoch; False if somebody else has it."""
        return self._backend.create(_record(holder.key, holder.epoch), json.dumps(asdict(holder)).encode())

    def finish(self, holder: Holder, outcome: str) -> None:
        """Record that the holder ended by itself, so that nobody waits for it."""
        self._backend.create(_done(holder), json.dumps({"attempt": holder.attempt, "outcome": outcome}).encode())

    def dead(self, holder: Holder) -> bool:
        """Whether the holder ended or died. For a holder elsewhere ask again and again: the verdict takes
        time.
        """
        if self._backend.read(_done(holder)) is not None:
            return True
        ended = gone(holder.process)
        return ended if ended is not None else self._silent(holder)

    def counter(self, holder: Holder) -> bytes | None:
        """The holder's heartbeat counter as last written; None before its first beat."""
        return self._backend.read(heartbeat_path(holder))

    def _silent(self, holder: Holder) -> bool:
        name = (holder.key, holder.epoch)
        counter = self.counter(holder)
        now = self._timing.clock()
        if name not in self._seen or self._seen[name][0] != counter:
            self._seen[name] = (counter, now)
        return now - self._seen[name][1] >= self._timing.dead_after


class Heartbeat:
    """A thread that counts up in the store while an attempt lives. A failed write is counted and tried again."""

    def __init__(self, backend: Backend, holder: Holder, seconds: float) -> None:
        self._backend = backend
        self._path = heartbeat_path(holder)
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="afm-heartbeat", daemon=True)
        self.failures = 0

    def start(self) -> None:
        """Begin counting."""
        self._thread.start()

    def stop(self) -> None:
        """End counting; waits for a write in progress."""
        self._stop.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            try:
                self._backend.write(self._path, str(count).encode(), durable=False)
            except (OSError, StoreError, ValueError):
                self.failures += 1
            crash_point("during_heartbeat")
            self._stop.wait(self._seconds)


def heartbeat_path(holder: Holder) -> str:
    """Where a holder counts."""
    return f"{epoch_path(holder.key, holder.epoch)}/heartbeat"


def _directory(key: str) -> str:
    return f"work/{key}/lease"


def _record(key: str, epoch: int) -> str:
    return f"{_directory(key)}/{epoch:04d}.json"


def _done(holder: Holder) -> str:
    return f"{_directory(holder.key)}/{holder.epoch:04d}.done"
