"""`afm trajectories`: one JSON document, findings with exit code 0, a ConfigError for the user's mistakes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from afm_cli.trajectories import trajectories
from afm_core.config import ConfigError
from afm_core.store import ArtifactKind, StageResult, StageSpec, open_store

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


def test_an_artifact_is_validated_and_exported_by_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a.json"
    source.write_text(json.dumps([{"question": "Who?", "output": TRACE}]))
    store = open_store(str(tmp_path / "store"), tmp_path / "cache")
    monkeypatch.setenv("AFM_STORE", store.uri)
    spec = StageSpec(stage="teach", config={}, inputs={}, store_uri=store.uri)
    with store.attempt(
        key="a" * 64, spec=spec, kind=ArtifactKind.TRAJECTORIES, sections=(), scratch=tmp_path / "scratch"
    ) as attempt:
        run("import", source, "--from", "afm", "--grammar", "mhqa", "-o", attempt.output / "trajectories.parquet")
        digest = attempt.commit(StageResult()).digest
    assert json.loads(run("validate", digest[:8], "--grammar", "mhqa", "--json"))["valid"] == 1
    assert "1 of 1 trajectories are valid" in run("validate", f"trajectories:{digest}", "--grammar", "mhqa")
    monkeypatch.chdir(tmp_path)
    run("export", digest, "--to", "alpaca")
    assert (tmp_path / f"trajectories-{digest[:12]}.alpaca.json").is_file()
    with pytest.raises(ConfigError, match="no trajectories"):
        run("validate", "0" * 8, "--grammar", "mhqa")
