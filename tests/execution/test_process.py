"""Stage processes: what they say, how they die, and that nothing outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from afm_core.config import ConfigError
from afm_core.execution import FailureKind, Finished, Progress, StageFailed, is_retryable
from afm_core.execution.events import decode, encode
from afm_core.execution.process import cause_of_death, run_process
from afm_core.execution.worker import classify
from afm_core.store import ArtifactKind, ArtifactRef, StoreUnavailable

_REF = ArtifactRef(kind=ArtifactKind.TASKS, digest="d", uri="u")


@pytest.mark.parametrize(
    "event", [Progress(done=1, total=2, message="ß\n"), Finished(ref=_REF, cached=True, metrics={"n": 1})]
)
def test_events_survive_the_wire_in_one_line(event) -> None:
    line = encode(event)
    assert "\n" not in line
    assert decode(line) == event


def test_chatter_is_no_event() -> None:
    with pytest.raises(ValueError):
        decode("loading weights... 100%")


def test_cause_of_death_names_signal_code_and_memory() -> None:
    assert "SIGKILL" in cause_of_death(-9)
    assert "memory" in cause_of_death(-9, oom_kills=1)
    assert "exit code 7" in cause_of_death(7)


def test_only_infrastructure_is_retried() -> None:
    assert is_retryable(StageFailed("x", FailureKind.DIED))
    assert is_retryable(StageFailed("x", classify(StoreUnavailable("down"))))
    assert is_retryable(StoreUnavailable("down"))
    assert not is_retryable(StageFailed("x", classify(ValueError("bug"))))
    assert not is_retryable(ConfigError("typo"))


def _run(spec: Path, tmp_path: Path, environment: dict[str, str], timeout: float = 60) -> Finished:
    return run_process(
        spec,
        environment={**os.environ, **environment},
        log_path=tmp_path / "stage.log",
        timeout_seconds=timeout,
        on_event=lambda event: None,
        on_log=lambda line: None,
    )


@pytest.mark.integration
def test_a_bad_spec_is_the_users_mistake(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text("{}")
    with pytest.raises(ConfigError, match="not a readable stage spec"):
        _run(spec, tmp_path, {})


_PARENT = """
import os, subprocess, sys, time
read, write = os.pipe()
code = sys.argv[1].replace("PARENT", str(os.getpid()))
child = subprocess.Popen([sys.executable, "-c", code], stdin=read, start_new_session=True)
os.close(read)
print(child.pid, flush=True)
time.sleep(60)
"""
_BY_SIGNAL = "from afm_core.execution.lifeline import die_with_parent as f; f(PARENT); import time; time.sleep(60)"
_BY_PIPE = (
    "from afm_core.execution.lifeline import watch_pipe, end_own_group; import time;"
    "watch_pipe(0, end_own_group); time.sleep(60)"
)


@pytest.mark.integration
@pytest.mark.parametrize("child", [_BY_SIGNAL, _BY_PIPE], ids=["signal", "pipe"])
def test_prefect18839_infrastructure_outlives_a_killed_run(child: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, child], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    time.sleep(1.0)  # the child imports and ties itself
    assert psutil.pid_exists(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 20
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
