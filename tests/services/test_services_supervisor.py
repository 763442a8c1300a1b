"""Start side by side, keep what runs, stop what was started and nothing else: with small real processes."""

import os
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest
from small_servers import kill, processes_of

from afm_core.config import ConfigError
from afm_core.services import Options, ServiceName, ServiceState, StartFailed, down, processes, status, up
from afm_core.services.catalogue import CATALOGUE
from afm_core.services.state import Places, StackRecord, load_record, save_record

PREFECT, WORKER, MLFLOW, S3 = ServiceName.PREFECT, ServiceName.WORKER, ServiceName.MLFLOW, ServiceName.S3
ENDS = "import sys; print('the cause'); sys.exit(3)"
HANGS = "import time; time.sleep(60)"
CHILD_OF_ITS_OWN = "import subprocess; subprocess.Popen(['setsid', 'sleep', '60']);" + "{server}"


def silent(text: str) -> None:
    del text


def pids(home: Path) -> dict[ServiceName, int]:
    return {one.name: one.pid for one in status(home)}


def test_what_runs_stays_and_what_died_is_started_again(own_home: Path, small: dict[ServiceName, str]) -> None:
    said: list[str] = []
    services = up(own_home, Options(), [MLFLOW, S3], said.append)
    assert [(one.state, one.healthy) for one in services] == [(ServiceState.RUNNING, True)] * 2
    assert sorted(line.partition(":")[0] for line in said) == ["mlflow", "s3"]
    first = pids(own_home)
    assert pids(own_home) == first == {one.name: one.pid for one in up(own_home, Options(), [MLFLOW, S3], silent)}

    kill(first[S3])
    dead = {one.name: one for one in status(own_home)}
    assert (dead[S3].state, dead[MLFLOW].state) == (ServiceState.DEAD, ServiceState.RUNNING)
    assert str(first[S3]) in dead[S3].problem
    ports = {one.name: one.url for one in status(own_home)}
    again = up(own_home, Options(), [MLFLOW, S3], silent)
    assert {one.name: one.url for one in again} == ports
    assert pids(own_home)[MLFLOW] == first[MLFLOW]
    assert pids(own_home)[S3] != first[S3]

    assert set(down(own_home, silent)) == {MLFLOW, S3}
    assert processes_of(own_home) == []
    assert (status(own_home), down(own_home, silent)) == ([], [])


def test_a_hung_server_is_unhealthy_and_replaced(
    own_home: Path, small: dict[ServiceName, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afm_core.services.health.SECONDS", 0.2)
    up(own_home, Options(), [S3], silent)
    first = pids(own_home)[S3]
    psutil.Process(first).suspend()
    (hung,) = status(own_home)
    assert (hung.state, hung.healthy) == (ServiceState.UNHEALTHY, False)
    assert "no answer" in hung.problem
    (replaced,) = up(own_home, Options(), [S3], silent)
    assert replaced.healthy
    assert processes.start_of(first) is None


def test_a_service_waits_for_what_it_needs_and_brings_it_along(own_home: Path, small: dict[ServiceName, str]) -> None:
    order: list[str] = []
    up(own_home, Options(), [WORKER], order.append)
    assert [line.partition(":")[0] for line in order] == ["prefect", "worker"]


@pytest.mark.parametrize(
    ("program", "reason"), [(ENDS, "mlflow ended while it started: exit code 3"), (HANGS, "mlflow was not healthy")]
)
def test_a_server_that_does_not_come_up_is_named_and_the_others_of_this_call_stop(
    own_home: Path, places: Places, small: dict[ServiceName, str], program: str, reason: str
) -> None:
    small[MLFLOW] = program
    with pytest.raises(StartFailed, match=reason) as caught:
        up(own_home, Options(start_seconds=0.5), [MLFLOW, S3], silent)
    assert str(places.log(MLFLOW)) in str(caught.value)
    assert caught.value.tail == (["the cause"] if program == ENDS else [])
    assert processes_of(own_home) == []
    assert (places.record.exists(), places.environment.exists()) == (False, False)


def test_a_failure_leaves_what_ran_before(own_home: Path, places: Places, small: dict[ServiceName, str]) -> None:
    up(own_home, Options(), [S3], silent)
    before, environment = load_record(places), places.environment.read_bytes()
    small[MLFLOW] = ENDS
    with pytest.raises(StartFailed):
        up(own_home, Options(), [MLFLOW], silent)
    assert (load_record(places), places.environment.read_bytes()) == (before, environment)
    assert [one.healthy for one in status(own_home)] == [True]


def test_down_finds_what_left_the_session_and_nothing_of_others(
    own_home: Path, places: Places, small: dict[ServiceName, str]
) -> None:
    """A recycled process number belongs to another process: it is dead to us, and never signalled."""
    small[S3] = CHILD_OF_ITS_OWN.format(server=small[S3])
    up(own_home, Options(), [S3, MLFLOW], silent)
    record = load_record(places)
    assert record is not None
    with subprocess.Popen(["sleep", "60"]) as other:
        stolen = record.services[MLFLOW].model_copy(update={"pid": other.pid})
        save_record(places, record.model_copy(update={"services": record.services | {MLFLOW: stolen}}))
        assert {one.name: one.state for one in status(own_home)} == {
            S3: ServiceState.RUNNING,
            MLFLOW: ServiceState.DEAD,
        }
        assert len(processes_of(own_home)) == 3
        down(own_home, silent)
        assert processes_of(own_home) == []
        assert other.poll() is None
        other.kill()


def test_runs_of_the_worker_may_end_in_order_before_the_worker_kills_them(
    own_home: Path, tmp_path: Path, small: dict[ServiceName, str]
) -> None:
    record = tmp_path / "record"
    run = (
        f"import pathlib, signal, sys, time; record = pathlib.Path({str(record)!r});"
        "signal.signal(15, lambda *_: (time.sleep(0.1), record.write_text('cancelled'), sys.exit()));"
        "record.write_text('running'); time.sleep(60)"
    )
    worker = f"import signal, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {run!r}])\n"
    kills = "signal.signal(15, lambda *_: (child.kill(), sys.exit()))\n"
    small[WORKER] = worker + kills + small[WORKER]
    up(own_home, Options(), [WORKER], silent)
    while not record.exists() or record.read_text() != "running":
        time.sleep(0.01)
    down(own_home, silent)
    assert record.read_text() == "cancelled"
    assert processes_of(own_home) == []


def test_a_record_of_another_boot_is_dead_and_its_numbers_mean_nothing(
    own_home: Path, places: Places, small: dict[ServiceName, str]
) -> None:
    up(own_home, Options(), [S3], silent)
    record = load_record(places)
    assert record is not None
    save_record(places, record.model_copy(update={"boot_id": "before"}))
    (one,) = status(own_home)
    assert (one.state, one.problem) == (ServiceState.DEAD, "the machine was restarted since")
    down(own_home, silent)
    assert len(processes_of(own_home)) == 1


def test_a_copied_home_does_not_own_the_servers(own_home: Path, places: Places, small: dict[ServiceName, str]) -> None:
    up(own_home, Options(), [S3], silent)
    copy = Places(own_home.parent / "copy")
    copy.make()
    copy.record.write_bytes(places.record.read_bytes())
    assert status(copy.home) == []
    assert down(copy.home, silent) == []
    assert [one.healthy for one in status(own_home)] == [True]


@pytest.mark.parametrize("text", ["", "{}", '{"services": []}', '{"version": 1, "home": "h", "pid": 3}'])
def test_a_damaged_record_is_named_and_nothing_is_signalled(places: Places, text: str) -> None:
    places.record.write_text(text)
    for command in (lambda: status(places.home), lambda: down(places.home, silent)):
        with pytest.raises(ConfigError, match=r"services\.json is not a record of `afm up`"):
            command()


def test_of_two_at_once_one_starts_and_the_other_finds_it_running(
    own_home: Path, small: dict[ServiceName, str]
) -> None:
    found: list[int] = []
    said: list[str] = []

    def start() -> None:
        found.extend(one.pid for one in up(own_home, Options(), [S3], said.append))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert len(set(found)) == 1
    assert len([line for line in said if line.startswith("s3: healthy")]) == 1


def test_what_runs_the_users_work_starts_anew_when_the_stack_grows(
    own_home: Path, small: dict[ServiceName, str]
) -> None:
    """A worker that was started without the S3 server would give its runs no S3."""
    up(own_home, Options(), [WORKER], silent)
    first = pids(own_home)
    up(own_home, Options(), [S3], silent)
    assert (pids(own_home)[PREFECT], pids(own_home)[WORKER]) != (first[PREFECT], first[WORKER])
    assert pids(own_home)[PREFECT] == first[PREFECT]


def test_what_a_killed_up_left_is_stopped_too(own_home: Path, places: Places, small: dict[ServiceName, str]) -> None:
    """Killed between the start of a server and its note in the record: the mark tells whose it is."""
    up(own_home, Options(), [S3], silent)
    record = load_record(places)
    assert record is not None
    save_record(places, record.model_copy(update={"services": {}}))
    down(own_home, silent)
    assert processes_of(own_home) == []


def test_running_servers_do_not_move(own_home: Path, small: dict[ServiceName, str]) -> None:
    up(own_home, Options(), [S3], silent)
    with pytest.raises(ConfigError, match="s3 already runs with --s3-port"):
        up(own_home, Options(ports={"s3": 2000}), [S3], silent)


def test_postgres_is_not_exchanged_under_running_data(
    own_home: Path, places: Places, small: dict[ServiceName, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    up(own_home, Options(), [MLFLOW], silent)
    monkeypatch.setenv("AFM_POSTGRES_URL", "postgresql://me:secret@db.example:5433")
    with pytest.raises(ConfigError, match=r"in SQLite, not me@db\.example:5433: `afm down` first"):
        up(own_home, Options(), [MLFLOW], silent)
    monkeypatch.delenv("AFM_POSTGRES_URL")
    record = load_record(places)
    assert record is not None
    save_record(places, record.model_copy(update={"postgres": "me@db.example:5433"}))
    kill(record.services[MLFLOW].pid)
    with pytest.raises(ConfigError, match="give AFM_POSTGRES_URL again"):
        up(own_home, Options(), [MLFLOW], silent)


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_REST_SECONDS", 0.1)
    mark = f"{os.getpid()}-{time.monotonic_ns()}/s3"
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    log = tmp_path / "log"
    process = processes.launch(["python3", "-c", program], dict(os.environ), mark, tmp_path, log)
    while "ready" not in log.read_text():
        time.sleep(0.01)
    assert processes.stop([mark], {process.pid: 0.1}) == []
    assert process.wait(timeout=5) == -9


def test_the_catalogue_needs_no_service_that_it_does_not_have() -> None:
    assert set(CATALOGUE) == set(ServiceName)
    assert {need for one in CATALOGUE.values() for need in one.needs} == {PREFECT}
    ports = [port for one in CATALOGUE.values() for port in one.ports]
    assert len(ports) == len(set(ports))


def test_a_record_tells_no_secret(places: Places) -> None:
    assert not {name for name in StackRecord.model_fields if "key" in name or "token" in name or "password" in name}
