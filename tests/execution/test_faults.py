"""Faults around a run, with real processes: a full disk, MLflow away, the Prefect server killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import free_ports, wait_for

from afm_core.config import load_config
from afm_core.execution import Failed, FailureKind, Finished, RunSession, key_of
from afm_core.execution.events import decode
from afm_core.store import StageSpec, open_store
from afm_core.tracking import MetricSpool, replay

pytestmark = pytest.mark.integration

_LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.argv = ["afm", "stage", sys.argv[2]]
runpy.run_module("afm_cli.main", run_name="__main__")
"""


def test_a_full_disk_is_told_in_one_line_and_the_rerun_continues(tmp_path: Path, own_home: Path) -> None:
    """No file may grow beyond 2,000 bytes: for the process that is a disk that is full, as root and as anybody."""
    store = open_store(str(tmp_path / "store"), tmp_path / "cache")
    spec = StageSpec(stage="corpus", config=load_config("smoke").model_dump(mode="json"), store_uri=store.uri)
    path = tmp_path / "spec.json"
    path.write_text(spec.model_dump_json())

    def stage(limit: int) -> Any:
        command = [sys.executable, "-c", _LIMITED, str(limit), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return decode(done.stdout.splitlines()[-1])

    failed = stage(2_000)
    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.INFRASTRUCTURE
    assert failed.message.startswith("the disk is full: ")
    assert "\n" not in failed.message
    assert store.lookup(key_of(spec)) is None
    assert all(one.problems == () for one in store.verify())
    assert store.leases().dead(store.leases().newest(key_of(spec)))
    assert isinstance(stage(10**9), Finished)
    assert [one.problems for one in store.verify()] == [()]


@contextmanager
def _server(command: list[str], log: Path, environment: dict[str, str] | None = None) -> Iterator["subprocess.Popen"]:
    """A server in a group of its own, killed with it."""
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, env={**os.environ, **(environment or {})}, start_new_session=True
        )
    try:
        yield process
    finally:
        _kill(process)


def _kill(process: "subprocess.Popen") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _answers(url: str) -> bool:
    import httpx

    with suppress(httpx.HTTPError):
        return httpx.get(url, timeout=5).status_code == 200
    return False


@contextmanager
def _mlflow(folder: Path, port: int) -> Iterator["subprocess.Popen"]:
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'server.db'}", "--artifacts-destination", str(folder)]
    with _server(command, folder / "mlflow.log", {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}) as process:
        wait_for(lambda: _answers(f"http://127.0.0.1:{port}/health"), 120)
        yield process


def test_a_run_goes_on_without_mlflow_and_its_metrics_come_later_with_their_own_times(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    uri = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    points = [(step, 1_700_000_000_000 + 1000 * step, 1.0 / (step + 1)) for step in range(5)]
    with _mlflow(tmp_path, port) as server, RunSession(load_config("smoke"), "a-run") as run:
        spool = MetricSpool(own_home / "spool", "a-run:corpus", {"afm.run": "a-run", "afm.stage": "corpus"})
        for step, moment, value in points[:2]:
            spool.log({"loss": value}, step, moment)
        assert replay(own_home / "spool", uri, "afm").error == ""
        _kill(server)
        for step, moment, value in points[2:]:
            spool.log({"loss": value}, step, moment)
        assert not run.execute("corpus", {}).cached
    report = json.loads((own_home / "spool" / "replay.json").read_text())
    assert "does not answer" in report["error"]
    with _mlflow(tmp_path, port):
        for _ in range(2):  # the second repeats everything: the same rows
            assert replay(own_home / "spool", uri, "afm", ended="a-run").error == ""
            for offset in (own_home / "spool").glob("*.offset"):
                offset.unlink()
        from mlflow import MlflowClient

        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name("afm")
        (found,) = client.search_runs([experiment.experiment_id], "tags.`afm.stage` = 'corpus'")
        history = client.get_metric_history(found.info.run_id, "loss")
        assert [(one.step, one.timestamp, one.value) for one in history] == points
        assert found.info.status == "FINISHED"


@contextmanager
def _prefect(folder: Path, port: int) -> Iterator["subprocess.Popen"]:
    program = f"import uvicorn; uvicorn.run('prefect.server.api.server:create_app', factory=True, port={port})"
    environment = {"PREFECT_HOME": str(folder), "PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1"}
    with _server([sys.executable, "-c", program], folder / "prefect.log", environment) as process:
        wait_for(lambda: _answers(f"http://127.0.0.1:{port}/api/health"), 120)
        yield process


def test_kill_9_of_the_prefect_server_ends_the_run_in_one_line_and_the_rerun_continues(
    tmp_path: Path, own_home: Path
) -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "afm_cli.main"]
    environment = {**os.environ, "PREFECT_API_URL": f"http://127.0.0.1:{port}/api", "PREFECT_HOME": str(tmp_path)}
    impatient = {**environment, "PREFECT_CLIENT_MAX_RETRIES": "1"}  # by default it asks for more than two minutes
    errors = tmp_path / "errors.log"
    with _prefect(tmp_path, port) as server:
        with errors.open("w") as log:
            process = subprocess.Popen(
                [*command, "run", "--profile", "smoke", "--until", "teach", "--json"],
                env=impatient,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        wait_for(lambda: "✓ corpus" in errors.read_text() or process.poll() is not None, 240)
        _kill(server)
        document = json.loads(process.communicate(timeout=240)[0])
    assert process.returncode == 1
    assert document["status"] == "failed"
    assert "Prefect server" in document["error"]
    assert "afm runs resume" in document["error"]
    assert errors.read_text().rstrip().splitlines()[-1].startswith("error: the Prefect server")
    with _prefect(tmp_path, port):
        resumed = subprocess.run(
            [*command, "runs", "resume", "last", "--json"], env=environment, capture_output=True, text=True, timeout=240
        )
    assert resumed.returncode == 0, resumed.stderr
    document = json.loads(resumed.stdout)
    assert document["status"] == "completed"
    assert {stage["name"]: stage["cached"] for stage in document["stages"]}["corpus"]
