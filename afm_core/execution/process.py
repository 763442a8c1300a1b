"""A stage as a fresh local process: start it, pass on what it says, bound its time, tell how it died.

The child leads its own process group, so that stopping it stops its whole tree. Its standard input is the pipe whose
end tells it that this process is gone.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from afm_core.execution.events import Event, FailureKind, Finished, decode
from afm_core.execution.runner import GRACE_SECONDS, StageFailed, stoppable, verdict

PARENT_PIPE = "AFM_PARENT_PIPE"
"""Set for a child whose standard input is the pipe of its parent."""


def run_process(
    spec_path: Path,
    *,
    environment: dict[str, str],
    log_path: Path,
    timeout_seconds: float,
    on_event: Callable[[Event], None],
    on_log: Callable[[str], None],
) -> Finished:
    """Run `afm stage SPEC` to its end.

    Raises:
        ConfigError: the stage refused its configuration or input.
        StageFailed: anything else that is not an artifact, with the cause of death.
    """
    command = [sys.executable, "-m", "afm_cli.main", "stage", str(spec_path)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**environment, PARENT_PIPE: "1"},
        start_new_session=True,
    )
    timer = threading.Timer(timeout_seconds, _stop, (process,))
    timer.start()
    started = time.monotonic()
    oom_before = _oom_kills()
    final: Event | None = None
    try:
        with stoppable(lambda: _stop(process)):
            reader = threading.Thread(target=_read_logs, args=(process, log_path, on_log), daemon=True)
            reader.start()
            for event in _events(process):
                final = event
                on_event(event)
            code = process.wait()
            reader.join(timeout=5)
    except BaseException:
        _stop(process)
        raise
    finally:
        timer.cancel()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if time.monotonic() - started >= timeout_seconds:
        limit = f"stopped after its limit of {timeout_seconds:.0f} s; log: {log_path}"
        death = StageFailed(limit, FailureKind.TIMEOUT)
    else:
        told = f"{cause_of_death(code, _oom_kills() - oom_before)}; log: {log_path}"
        death = StageFailed(told, FailureKind.DIED)
    return verdict(final, code == 0, death, str(log_path))


def cause_of_death(code: int, oom_kills: int = 0) -> str:
    """In words: exit code or signal, and the kernel's out-of-memory kills since the start, if any."""
    text = exit_words(code)
    killed = code < 0 and oom_kills > 0
    return f"{text}; the kernel killed {oom_kills} process(es) for memory" if killed else text


def exit_words(code: int) -> str:
    """An exit code in words: below 0 it is a signal, above 128 a signal that a shell tells of."""
    number = -code if code < 0 else code - 128
    if code < 0 or number in set(signal.Signals):
        return f"process killed by {signal.Signals(number).name}"
    return f"process ended with exit code {code} without a result"


def _events(process: "subprocess.Popen[str]") -> Iterator[Event]:
    assert process.stdout is not None
    for line in process.stdout:
        with contextlib.suppress(ValueError):
            yield decode(line)


def _read_logs(process: "subprocess.Popen[str]", log_path: Path, on_log: Callable[[str], None]) -> None:
    assert process.stderr is not None
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("a", encoding="utf-8") as log:
        for line in process.stderr:
            log.write(line)
            log.flush()
            on_log(line.rstrip("\n"))


def _stop(process: "subprocess.Popen[str]") -> None:
    """SIGTERM to the stage (it seals a checkpoint), then SIGKILL to its whole group."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _oom_kills() -> int:
    for path in (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat")):
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0
