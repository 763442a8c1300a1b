"""`afm rollout` on a made-up store: which stage, with which inputs, and what is told before anything starts."""

import json
from pathlib import Path
from typing import Any

import pytest
import rl_road_samples as samples
from click.testing import CliRunner

from afm_cli.rollout import rollout
from afm_cli.runs import runs
from afm_cli.trajectories import trajectories
from afm_core.config import ConfigError
from afm_core.data import trajectories_table
from afm_core.execution import RunSession, StageRecord, list_runs
from afm_core.store import ArtifactKind, Store, open_store, write_table

ENDPOINTS = 'team.endpoints=[{name="a", base_url="http://127.0.0.1:8/v1", model="m"}]'


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("AFM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return open_store(str(tmp_path / "home" / "store"), tmp_path / "home" / "cache")


@pytest.fixture
def executed(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, str]]]:
    calls: list[tuple[str, dict[str, str]]] = []

    def execute(session: RunSession, name: str, inputs: Any, variant: str = "", **_: Any) -> StageRecord:
        calls.append((name, {role: ref.digest for role, ref in inputs.items()}))
        artifact = samples.commit(store, name, ArtifactKind.TRAJECTORIES, **inputs)
        record = StageRecord(name=name, cached=False, seconds=1.0, artifact=artifact, metrics={"rollouts": 12})
        session.record.stages.append(record)
        return record

    monkeypatch.setattr(RunSession, "execute", execute)
    return calls


def invoke(command: Any, *arguments: str) -> str:
    result = CliRunner().invoke(command, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_team_demonstrates_the_newest_tasks_and_resumes_the_same(store: Store, executed) -> None:
    made = samples.road(store)
    document = json.loads(invoke(rollout, "--profile", "smoke", "--set", ENDPOINTS, "--json"))
    inputs = {"corpus": made["corpus"].digest, "tasks": made["tasks"].digest}
    assert executed == [("rollout", inputs)]
    assert (document["status"], document["stages"][0]["metrics"]) == ("completed", {"rollouts": 12})
    samples.commit(store, "newer", ArtifactKind.TASKS, corpus=made["corpus"])
    invoke(runs, "resume", "last")
    assert executed[-1] == ("rollout", inputs)
    assert len(list_runs(Path("home").resolve())) == 2


def test_a_model_demonstrates_by_sampling(store: Store, executed) -> None:
    made = samples.road(store)
    shown = invoke(rollout, "--profile", "smoke", "--model", made["sft"].digest[:12])
    ((name, inputs),) = executed
    assert (name, inputs["policy"]) == ("sample", made["sft"].digest)
    assert "rollouts" in shown
    invoke(runs, "resume", "last")
    assert executed[-1] == (name, inputs)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "set team.endpoints"),
        (["--set", ENDPOINTS.replace('"m"', '"m", key_variable="NO_SUCH_KEY"')], "NO_SUCH_KEY"),
        (["--set", ENDPOINTS, "--tasks", "abcdef"], "abcdef"),
        (["--model", "abcdef"], "no model 'abcdef'"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(store: Store, arguments: list[str], told: str) -> None:
    samples.road(store)
    with pytest.raises(ConfigError, match=told):
        invoke(rollout, "--profile", "smoke", *arguments)
    assert list_runs(Path("home").resolve()) == []


def test_an_empty_store_says_how_to_make_tasks(store: Store) -> None:
    with pytest.raises(ConfigError, match="no tasks"):
        invoke(rollout, "--profile", "smoke", "--set", ENDPOINTS)


def test_a_rollout_that_was_not_chosen_can_be_shown(store: Store) -> None:
    def fill(directory: Path) -> None:
        for name, ids in (("trajectories", ["chosen"]), ("rollouts", ["chosen", "losing"])):
            table = trajectories_table([samples.rollout(one) for one in ids])
            write_table(table, directory / f"{name}.parquet")

    samples.commit(store, "rollout", ArtifactKind.TRAJECTORIES, fill)
    assert "losing" in invoke(trajectories, "show", "losing")
    assert "chosen" in invoke(trajectories, "show", "chosen")
