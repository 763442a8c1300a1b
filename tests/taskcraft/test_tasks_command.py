"""`afm tasks`: generate, add, ls, show."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from afm_cli.tasks import tasks
from afm_core.config import ConfigError


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AFM_STORE", raising=False)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(tasks, arguments)


def test_generated_tasks_can_be_added_listed_and_shown(tmp_path: Path) -> None:
    output = tmp_path / "tasks.jsonl"
    made = json.loads(_run("generate", "--profile", "smoke", "--output", str(output), "--json").stdout)
    assert made["tasks"] == made["metrics"]["tasks"] == len(output.read_text().splitlines())
    added = json.loads(_run("add", str(output), "--json").stdout)
    assert added["tasks"] == made["tasks"]
    (listed,) = json.loads(_run("ls", "--json").stdout)["task_sets"]
    assert (listed["place"], listed["splits"]) == (added["file"], added["splits"])
    first = json.loads(output.read_text().splitlines()[0])
    assert json.loads(_run("show", first["id"], "--json").stdout) == first
    assert first["question"] in _run("show", first["id"][:12]).stdout


def test_a_malformed_file_names_file_row_and_field(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "q", "answr": "a"}')
    error = _run("add", str(path)).exception
    assert isinstance(error, ConfigError)
    assert "mine.jsonl, row 1, field answr" in str(error)


def test_an_unknown_id_and_a_wrong_ending_are_the_users_mistakes(tmp_path: Path) -> None:
    assert isinstance(_run("show", "zz").exception, ConfigError)
    wrong = _run("generate", "--profile", "smoke", "--output", str(tmp_path / "tasks.csv"))
    assert isinstance(wrong.exception, ConfigError)
