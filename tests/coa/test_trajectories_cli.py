"""`afm trajectories`: one JSON document, findings with exit code 0, a ConfigError for the user's mistakes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from afm_cli.trajectories import trajectories
from afm_core.config import ConfigError

TRACE = "<think>a</think><answer>X</answer>"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(trajectories, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_validate_import_export_show(tmp_path: Path) -> None:
    source = tmp_path / "a.json"
    source.write_text(json.dumps([{"question": "Who?", "output": TRACE}, {"output": "<think>"}]))
    report = json.loads(run("validate", source, "--grammar", "mhqa", "--json"))
    assert (report["rows"], report["valid"]) == (2, 1)
    assert "1 of 2 trajectories are valid" in run("validate", source, "--grammar", "mhqa")
    target = tmp_path / "t.parquet"
    summary = json.loads(run("import", source, "--from", "afm", "--grammar", "mhqa", "-o", target, "--json"))
    assert (summary["imported"], summary["dropped"]) == (1, {"broken_tags": 1})
    run("export", target, "--to", "alpaca", "-o", tmp_path / "b.json")
    (row,) = json.loads((tmp_path / "b.json").read_text())
    assert row["output"] == TRACE
    shown = json.loads(run("show", row["id"][:8], "--file", target, "--json"))
    assert shown["answer"] == "X"
    assert "answer" in run("show", row["id"], "--file", target)


def test_mistakes_of_the_user_are_config_errors(tmp_path: Path) -> None:
    source = tmp_path / "a.json"
    source.write_text(json.dumps([{"question": "Who?", "output": TRACE}]))
    for arguments in (["validate", tmp_path / "none.json", "--grammar", "web"], ["show", "zz", "--file", source]):
        with pytest.raises(ConfigError):
            run(*arguments)
