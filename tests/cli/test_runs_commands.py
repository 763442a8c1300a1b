"""`afm runs cancel` and `resume`: on records and processes of the test, and once on a real run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from afm_cli.runs import runs
from afm_core.config import ConfigError
from afm_core.execution import RoadStage, RunDirectory, RunRecord, RunStatus, StageRecord
from afm_core.execution.runs import now
from afm_core.store import ArtifactKind, ArtifactRef

REF = ArtifactRef(kind=ArtifactKind.CORPUS, digest="d", uri="u")


def saved(home: Path, **fields: Any) -> RunRecord:
    record = RunRecord.model_validate({"run_id": "a-run", "profile": "smoke", "started": now(), "pid": 1, **fields})
    RunDirectory(home, record.run_id).create().save(record)
    return record


def call(*arguments: str) -> None:
    ended = CliRunner().invoke(runs, list(arguments), catch_exceptions=False)
    assert ended.exit_code == 0


def test_cancel_sends_sigterm_to_the_run(own_home: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        saved(own_home, pid=process.pid)
        call("cancel", "last")
        assert process.wait(timeout=20) == -signal.SIGTERM


@pytest.mark.parametrize("fields", [{"status": "completed"}, {"started": "2001-01-01T00:00:00+00:00"}])
def test_a_run_that_is_not_running_is_never_signalled(own_home: Path, fields: dict[str, str]) -> None:
    """The second: its process number belongs to another process now."""
    with subprocess.Popen(["sleep", "60"]) as process:
        saved(own_home, pid=process.pid, **fields)
        with pytest.raises(ConfigError, match="is not running on this machine"):
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
