"""`afm runs cancel` and `resume`: on records and processes of the test, and once on a real run."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from afm_cli.runs import runs
from afm_core.config import ConfigError
from afm_core.execution import RoadStage, RunDirectory, RunRecord, RunStatus, StageRecord
from afm_core.execution.runs import now
from afm_core.store import ArtifactKind, ArtifactRef, Process, this_process

REF = ArtifactRef(kind=ArtifactKind.CORPUS, digest="d", uri="u")


def saved(home: Path, **fields: Any) -> RunRecord:
    record = RunRecord.model_validate({"run_id": "a-run", "profile": "smoke", "started": now(), "pid": 1, **fields})
    RunDirectory(home, record.run_id).create().save(record)
    return record


def call(*arguments: str) -> str:
    ended = CliRunner().invoke(runs, list(arguments), catch_exceptions=False)
    assert ended.exit_code == 0
    return ended.output


def test_the_list_shows_what_is_at_work_and_can_be_narrowed(own_home: Path) -> None:
    saved(own_home, run_id="1-old", status="completed")
    saved(own_home, run_id="2-died", process=replace(this_process(), pid=2**22 + 1))
    work = {"sft": {"done": 3, "total": 9, "seconds_left": 240.0}}
    saved(own_home, run_id="3-new", process=this_process(), progress=work)
    assert "sft 3/9, 4 min left" in call("ls")
    names = [one["run_id"] for one in json.loads(call("ls", "--json", "--status", "running", "--status", "died"))]
    assert names == ["3-new", "2-died"]
    (newest,) = json.loads(call("ls", "--json", "--limit", "1"))
    assert newest["progress"]["sft"]["seconds_left"] == 240
    with pytest.raises(ConfigError, match="'dead'; there are running, completed"):
        call("ls", "--status", "dead")


def test_a_run_shows_its_spend_and_where_else_it_is_seen(own_home: Path) -> None:
    sft = StageRecord(name="sft", cached=False, seconds=3600, artifact=REF, metrics={"tokens": 12345})
    links = {"flow_run": "f", "mlflow_run": "m", "ray_dashboard": "http://head", "ray_jobs": {"sft": "a-run-sft-1"}}
    saved(own_home, status="completed", stages=[sft], links=links, config={"execution": {"price_per_hour": 2.5}})
    shown = call("show", "last")
    assert "spend: 60 min, 12,345 tokens trained, cost 2.50" in shown
    assert "Ray job of sft: http://head/#/jobs/a-run-sft-1" in shown
    assert json.loads(call("show", "last", "--json"))["spend"]["money"] == 2.5
    saved(own_home, status="completed", links={"mlflow_file": "sqlite:///home/mlflow.db"})
    assert "mlflow ui --backend-store-uri sqlite:///home/mlflow.db" in call("show", "last")


def test_logs_are_followed_to_the_end_of_the_run(own_home: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        saved(own_home, process=identity(process.pid))
        logs = own_home / "runs" / "a-run" / "logs"
        (logs / "sft.log").write_text("one\nhalf a li")
        follower = subprocess.Popen(
            [sys.executable, "-m", "afm_cli.main", "runs", "logs", "last", "--follow"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert [follower.stdout.readline() for _ in range(2)] == ["==> sft <==\n", "one\n"]
        (logs / "sft.log").write_text("one\nhalf a line\n")
        assert follower.stdout.readline() == "half a line\n"
        (logs / "rl.log").write_text("two\n")
        assert [follower.stdout.readline() for _ in range(2)] == ["==> rl <==\n", "two\n"]
        process.kill()
        process.wait()
        assert follower.communicate(timeout=30) == ("", None)


def identity(pid: int) -> Process:
    """Who a process of this machine is."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return replace(this_process(), pid=pid, started=stat.rpartition(")")[2].split()[19])


def test_cancel_sends_sigterm_to_the_run(own_home: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        saved(own_home, process=identity(process.pid))
        assert "has stopped" in call("cancel", "last")
        assert process.wait(timeout=20) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("status", "changed", "told"),
    [
        ("completed", {}, "is not running on this machine"),
        ("running", {"started": "1"}, "it died, and left nothing"),  # its number belongs to another process now
        ("running", {"host": "elsewhere"}, "runs on elsewhere: cancel it there"),
    ],
)
def test_a_run_that_is_not_running_here_is_never_signalled(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, status: str, changed: dict[str, str], told: str
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with subprocess.Popen(["sleep", "60"]) as process:
        saved(own_home, status=status, process=replace(identity(process.pid), **changed))
        with pytest.raises(ConfigError, match=told):
            call("cancel", "last")
        assert process.poll() is None
        process.kill()


@pytest.mark.parametrize(
    ("status", "refreshed"), [(RunStatus.CANCELLED, ("evaluate", "sft")), (RunStatus.COMPLETED, ())]
)
def test_resume_repeats_what_was_given_and_what_was_not_made_anew(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, status: RunStatus, refreshed: tuple[str, ...]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("afm_cli.run.execute", lambda *given: asked.extend(given))
    done = [StageRecord(name=name, cached=False, seconds=1, artifact=REF) for name in ("corpus", "evaluate:reference")]
    parameters = {"profile": "smoke", "config_file": None, "overrides": ["sft.seed=3"], "until": "sft"}
    saved(own_home, status=status, stages=done, parameters=parameters | {"refresh": ["corpus", "evaluate", "sft"]})
    call("resume", "last", "--json")
    assert asked == ["smoke", None, ("sft.seed=3",), refreshed, RoadStage.SFT, True]


def test_a_retraining_is_resumed_for_the_same_version_and_listed_with_its_decision(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("afm_cli.retrain.execute", lambda *given: asked.extend(given))
    parameters = {"profile": "smoke", "config_file": None, "overrides": [], "refresh": [], "until": "sft"}
    told = {"champion": {"outcome": "no_gain", "reason": "r"}, "pool": {"name": "default", "version": 3}}
    saved(own_home, status=RunStatus.FAILED, parameters={**parameters, "pool": "default", "version": 3}, **told)
    call("resume", "last", "--json")
    assert asked == ["default", 3, "smoke", None, (), (), RoadStage.SFT, True]
    (listed,) = json.loads(CliRunner().invoke(runs, ["ls", "--json"]).stdout)
    assert {name: listed[name] for name in told} == told


@pytest.mark.integration
def test_a_cancelled_run_says_so_and_is_resumed(own_home: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    command = [sys.executable, "-m", "afm_cli.main"]
    errors = own_home.parent / "errors.log"
    with errors.open("w") as log:
        process = subprocess.Popen(
            [*command, "run", "--profile", "smoke", "--until", "teach", "--json"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    deadline = time.monotonic() + 240
    while "✓ corpus" not in errors.read_text() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    call("cancel", "last")
    document = json.loads(process.communicate(timeout=120)[0])
    assert process.returncode == 130
    assert (document["status"], document["error"]) == ("cancelled", "interrupted")
    assert [stage["name"] for stage in document["stages"]][:1] == ["corpus"]
    assert errors.read_text().rstrip().endswith("interrupted")
    assert list((own_home / "scratch").iterdir()) == []

    resumed = subprocess.run(
        [*command, "runs", "resume", "last", "--json"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert resumed.returncode == 0, resumed.stderr
    document = json.loads(resumed.stdout)
    assert (document["status"], document["error"]) == ("completed", None)
    assert {stage["name"]: stage["cached"] for stage in document["stages"]}["corpus"]
    assert [stage["name"] for stage in document["stages"]] == ["corpus", "tasks", "teach"]
