"""Starting servers that outlive this command, and stopping these and no others.

A server's first process leads a session of its own. All that descends from it carries its mark in the environment, so
that what left the session (a Ray job, a flow run) is found as well, and a recycled process number never is.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

MARK = "AFM_SERVICE"
"""Environment variable of every process of the stack: STACK/SERVICE."""

_REST_SECONDS = 3.0
_KILL_SECONDS = 10.0


def launch(
    command: Sequence[str], environment: Mapping[str, str], mark: str, directory: Path, log: Path
) -> "subprocess.Popen[bytes]":
    """Start a detached process; its output is appended to `log`.

    SPT_NOENV keeps setproctitle (of Ray's workers) from overwriting the environment, where the mark is read.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            list(command),
            env={**environment, MARK: mark, "SPT_NOENV": "1", "PYTHONUNBUFFERED": "1"},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def start_of(pid: int) -> float | None:
    """When that process started, in a measure that no clock change moves; None if there is none or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else float(fields[19])
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
    import psutil

    with suppress(psutil.Error):
        return psutil.Process(pid).create_time()
    return None


def members(mark: str) -> "list[psutil.Process]":
    """The living processes that carry the mark, and their descendants (which may have dropped it)."""
    import psutil

    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found[process.pid] = process
    for process in list(found.values()):
        with suppress(psutil.Error):
            found.update({child.pid: child for child in process.children(recursive=True)})
    return [process for process in found.values() if start_of(process.pid) is not None]


def stop(marks: Iterable[str], leaders: Mapping[int, float]) -> list[int]:
    """End all processes of these marks: their leaders are asked first, then the rest, then all are killed.

    Args:
        leaders: process numbers, and the seconds that each has to end in order. They are signalled only if they carry
            one of the marks. What they leave behind has less time.

    Returns:
        Process numbers that even SIGKILL did not end.
    """
    marks = list(marks)
    everyone = [process for mark in marks for process in members(mark)]
    asked = [process for process in everyone if process.pid in leaders]
    _signal(asked, signal.SIGTERM)
    begin = time.monotonic()
    while any(start_of(one.pid) is not None and time.monotonic() - begin < leaders[one.pid] for one in asked):
        time.sleep(0.05)
    left = [process for mark in marks for process in members(mark)]
    _signal(left, signal.SIGTERM)
    _wait(left, _REST_SECONDS)
    deadline = time.monotonic() + _KILL_SECONDS
    while remaining := [one for mark in marks for one in members(mark)]:
        if time.monotonic() > deadline:
            break
        _signal(remaining, signal.SIGKILL)
        _wait(remaining, 1.0)
    return [process.pid for process in remaining]


def stop_children(leader: int, mark: str, grace: float) -> None:
    """Ask the children of a process that carries the mark to end, and give them time; the process itself runs on."""
    import psutil

    for process in members(mark):
        if process.pid == leader:
            with suppress(psutil.Error):
                children = process.children()
                _signal(children, signal.SIGTERM)
                _wait(children, grace)


def _signal(processes: "Sequence[psutil.Process]", number: signal.Signals) -> None:
    import psutil

    for process in processes:
        with suppress(psutil.Error):  # psutil looks at the start time: never a recycled number
            process.send_signal(number)


def _wait(processes: "Sequence[psutil.Process]", seconds: float) -> None:
    """Wait until these processes are gone (a zombie is: it only waits for its parent)."""
    deadline = time.monotonic() + seconds
    while any(start_of(one.pid) is not None for one in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
