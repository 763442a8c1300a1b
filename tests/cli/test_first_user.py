"""What a first user runs into: one line and exit code 2 for every mistake, nothing half-written, no lost champion."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from afm_cli.artifacts import _registries
from afm_cli.common import open_model, writing
from afm_cli.main import afm
from afm_cli.serve import _bound
from afm_core.config import ConfigError, RegistryConfig, load_config
from afm_core.execution import RunDirectory, RunRecord, find_run, list_runs
from afm_core.execution.plan import plan_run
from afm_core.execution.runs import now
from afm_core.store import ArtifactKind, StageResult, StageSpec, open_store
from afm_core.tracking import Registry


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AFM_STORE", raising=False)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--nope"], "see `afm run --help`"),
        (["nope"], "see `afm --help`"),
        (["eval", "wrold"], "did you mean 'world'?"),
        (["ask", " "], "QUESTION is empty"),
        (["run", "--profile", "smoke", "--plan", "--refresh", "stf"], "no stage 'stf'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], told: str) -> None:
    command = [sys.executable, "-m", "afm_cli.main", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert told in line


def test_a_command_group_without_arguments_shows_its_help() -> None:
    command = [sys.executable, "-m", "afm_cli.main", "runs"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert "Usage: " in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", ["inf", "nan", "1e400"])
def test_an_infinite_number_is_no_setting(number: str) -> None:
    with pytest.raises(ConfigError, match=r"sft\.epochs"):
        load_config("smoke", overrides=[f"sft.epochs={number}"])


def test_a_profile_is_a_name_not_a_path() -> None:
    with pytest.raises(ConfigError, match="no profile"):
        load_config("../configs/smoke")


def test_a_binary_record_damages_only_its_own_run(tmp_path: Path) -> None:
    (RunDirectory(tmp_path, "20260103-000000-cccc").create().path / "run.json").write_bytes(b"\xeb\xff\x00")
    assert list_runs(tmp_path) == []
    with pytest.raises(ConfigError, match="damaged"):
        find_run(tmp_path, "last").load()


def test_an_empty_run_name_is_no_run(tmp_path: Path) -> None:
    RunDirectory(tmp_path, "a").create().save(RunRecord(run_id="a", profile="smoke", started=now(), pid=1))
    RunDirectory(tmp_path, "ab").create().save(RunRecord(run_id="ab", profile="smoke", started=now(), pid=1))
    assert find_run(tmp_path, "a").run_id == "a"
    with pytest.raises(ConfigError, match="no run ''"):
        find_run(tmp_path, "")


def test_the_plan_refuses_an_unknown_stage_to_refresh() -> None:
    with pytest.raises(ConfigError, match="no stage 'stf'"):
        plan_run(load_config("smoke"), ["stf"])


def test_an_unwritable_output_is_the_users_mistake_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write"), writing(tmp_path / "file" / "x.json") as temporary:
        temporary.touch()
    with pytest.raises(ConfigError, match="cannot write"), writing(tmp_path / "x.json") as temporary:
        temporary.write_text("half") and (tmp_path / "absent" / "y").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_model_that_is_none_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    config = load_config("smoke")
    with pytest.raises(ConfigError, match=r"config\.json is missing"):
        open_model(config, str(tmp_path))
    with pytest.raises(ConfigError, match="no model 'nope'"):
        open_model(config, "nope")


def test_a_taken_port_is_told_before_the_model_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot serve on"):
            _bound("127.0.0.1", taken.getsockname()[1])


def test_garbage_collection_asks_the_registry_of_every_run(tmp_path: Path) -> None:
    record = RunRecord(run_id="a", profile="smoke", started=now(), pid=1, config={"registry": {"model_name": "mine"}})
    assert {name for _, name in _registries([record])} == {RegistryConfig().model_name, "mine"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["artifacts", "ls"], "no artifact in"),
        (["artifacts", "verify"], "0 artifacts"),
        (["artifacts", "gc"], "0 B in 0 places"),
        (["tasks", "ls"], "no tasks yet"),
        (["runs", "ls"], "no runs"),
    ],
)
def test_before_the_first_run_reading_is_fine_and_makes_nothing(
    own_home: Path, arguments: list[str], told: str
) -> None:
    ended = CliRunner().invoke(afm, arguments, catch_exceptions=False)
    assert (ended.exit_code, ended.stdout) == (0, "")
    assert told in ended.stderr
    assert not own_home.exists()


def test_the_plan_makes_no_store(own_home: Path) -> None:
    assert plan_run(load_config("smoke"))
    assert not own_home.exists()


@pytest.mark.parametrize(
    "arguments", [["artifacts", "ls"], ["artifacts", "verify"], ["trajectories", "show", "3fa9c1"]]
)
def test_a_store_that_is_not_there_is_a_mistake_and_is_not_made(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"there is no store at .*typo"):
        CliRunner().invoke(afm, [*arguments, "--store", str(tmp_path / "typo")], catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_verification_tells_what_is_quarantined_already(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"), tmp_path / "cache")
    spec = StageSpec(stage="tasks", config={}, store_uri=store.uri)
    with store.attempt(
        key="a" * 64, spec=spec, kind=ArtifactKind.TASKS, sections=(), scratch=tmp_path / "scratch"
    ) as attempt:
        (attempt.output / "tasks.parquet").write_bytes(b"x")
        digest = attempt.commit(StageResult()).digest
    store.quarantine("a" * 64, 0, "tasks.parquet: its content was changed")
    arguments = ["artifacts", "verify", "--store", store.uri]
    told = CliRunner().invoke(afm, arguments, catch_exceptions=False)
    assert told.exit_code == 0
    expected = (
        f"quarantined earlier: tasks:{digest[:12]} (tasks): tasks.parquet: its content was changed; not made anew"
    )
    assert expected in told.stderr
    document = json.loads(CliRunner().invoke(afm, [*arguments, "--json"]).stdout)
    assert (document["verified"], document["corrupt"]) == (0, [])
    (found,) = document["quarantined"]
    assert (found["artifact"]["digest"], found["stage"], found["replaced"]) == (digest, "tasks", False)


def test_asking_for_the_champion_makes_no_database(own_home: Path) -> None:
    with pytest.raises(ConfigError, match="no champion is registered"):
        open_model(load_config("smoke"), "champion")
    assert Registry(f"sqlite:///{own_home / 'mlflow.db'}", "afm").versions() == []
    assert not own_home.exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "store.uri=s3://nowhere/x"], "no credentials"),
        (["--set", "store.uri=/proc/store"], "cannot be written"),
        (["--set", "model.source=nosuchmodel"], "no model 'nosuchmodel'"),
        (["--set", "sft.epochs=many"], "sft.epochs"),
        (["--refresh", "stf"], "no stage 'stf'"),
    ],
)
def test_a_run_that_is_refused_is_one_line_and_one_document(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    command = [sys.executable, "-m", "afm_cli.main", "run", "--profile", "smoke", "--json", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert told in line
    document = json.loads(ended.stdout)
    assert (document["run_id"], document["status"], document["stages"]) == (None, "failed", [])
    assert told in document["error"]
    assert not (own_home / "runs").exists()
