"""`afm rl`, `afm run --until`, `afm runs resume` and the rollouts that `afm trajectories show` finds."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rl_road_samples as samples
from click.testing import CliRunner

from afm_cli.rl import rl
from afm_cli.run import run
from afm_cli.runs import runs
from afm_cli.trajectories import trajectories
from afm_core.config import ConfigError
from afm_core.curation.reasons import Rejection, RejectReason
from afm_core.curation.stages import rejected_table
from afm_core.data import trajectories_table
from afm_core.execution import RoadStage, RunDirectory, RunRecord, RunSession, StageRecord, list_runs
from afm_core.execution.rl_inputs import rl_inputs
from afm_core.execution.runs import now
from afm_core.store import ArtifactKind, Store, open_store, write_table


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("AFM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AFM_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    return open_store(str(tmp_path / "home" / "store"), tmp_path / "home" / "cache")


def invoke(command: Any, *arguments: object) -> str:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


# --- what RL alone is given


def test_rl_takes_base_tasks_and_corpus_from_the_models_lineage(store: Store) -> None:
    made = samples.road(store)
    samples.commit(store, "newer", ArtifactKind.TASKS)
    found = rl_inputs(store, made["sft"])
    assert (found.base, found.tasks, found.corpus) == (made["base"], made["tasks"], made["corpus"])
    again = rl_inputs(store, samples.commit(store, "rl", ArtifactKind.MODEL, policy=made["sft"]))
    assert (again.base, again.tasks) == (made["base"], made["tasks"])


def test_the_selection_in_an_rl_models_lineage_is_not_taken_for_the_tasks(store: Store) -> None:
    made = samples.road(store)
    selected = samples.commit(store, "select", ArtifactKind.TASKS, tasks=made["tasks"], policy=made["sft"])
    inputs = {"policy": made["sft"], "selected": selected, "tasks": made["tasks"]}
    assert rl_inputs(store, samples.commit(store, "rl", ArtifactKind.MODEL, **inputs)).tasks == made["tasks"]
    with pytest.raises(ConfigError, match=f"selection.*{made['tasks'].digest[:12]}"):
        rl_inputs(store, made["sft"], selected)


def test_a_model_from_elsewhere_takes_the_newest_of_the_store_and_says_so(store: Store) -> None:
    model = samples.commit(store, "import", ArtifactKind.MODEL)
    with pytest.raises(ConfigError, match="no tasks"):
        rl_inputs(store, model)
    made = samples.road(store)
    found = rl_inputs(store, model)
    assert (found.base, found.tasks, found.corpus) == (model, made["tasks"], made["corpus"])
    assert found.origins["tasks"] == "the newest of the store"


# --- afm rl


@pytest.fixture
def executed(store: Store, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """Stages that are made up: label -> inputs by digest. `rl` leaves a record and rollouts."""
    calls: dict[str, dict[str, str]] = {}

    def execute(session: RunSession, name: str, inputs: Any, variant: str = "", **_: Any) -> StageRecord:
        calls[name] = {role: ref.digest for role, ref in inputs.items()}
        kind, fill = (ArtifactKind.TASKS, None) if name == "select" else (ArtifactKind.MODEL, samples.write_rl)
        artifact = samples.commit(store, name, kind, fill, **inputs)
        record = StageRecord(name=name, cached=False, seconds=1.0, artifact=artifact)
        session.record.stages.append(record)
        return record

    monkeypatch.setattr(RunSession, "execute", execute)
    return calls


def test_afm_rl_selects_and_trains_on_a_given_model(store: Store, executed: dict[str, dict[str, str]]) -> None:
    made = {name: ref.digest for name, ref in samples.road(store).items()}
    document = json.loads(
        invoke(rl, "--model", made["sft"][:10], "--profile", "smoke", "--set", "rl.steps=1", "--json")
    )
    shared = {"policy": made["sft"], "tasks": made["tasks"], "corpus": made["corpus"]}
    selected, trained = (stage["artifact"]["digest"] for stage in document["stages"])
    assert executed == {"select": {**shared, "base": made["base"]}, "rl": {**shared, "selected": selected}}
    assert document["artifact"]["digest"] == trained
    assert (document["status"], document["rl"]["registered_step"]) == ("completed", 1)
    (record,) = list_runs(Path("home").resolve())
    assert [stage.name for stage in record.stages] == ["select", "rl"]
    assert "Reinforcement learning" in Path(document["report"]).read_text()


def test_afm_rl_shows_the_steps_and_what_came_out(store: Store, executed: dict[str, dict[str, str]]) -> None:
    made = samples.road(store)
    shown = invoke(rl, "--model", made["sft"].digest, "--profile", "smoke", "--set", "rl.steps=1")
    assert "50.0% *" in shown
    assert "kept: the model after step 1 of 1 steps" in shown


def test_a_run_of_afm_rl_is_resumed_as_one(store: Store, executed: dict[str, dict[str, str]]) -> None:
    made = samples.road(store)
    invoke(rl, "--model", made["sft"].digest, "--profile", "smoke", "--set", "rl.steps=1", "--set", "rl.seed=5")
    executed.clear()
    invoke(runs, "resume", "last")
    assert executed["rl"]["policy"] == made["sft"].digest
    newest, first = list_runs(Path("home").resolve())
    assert newest.config == first.config


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "rl.steps=0"], "rl.steps is 0"),
        (["--model", "."], "is a directory"),
        (["--model", "champion"], "no champion"),
        (["--model", "abcdef"], "no model 'abcdef'"),
        (["--replay", "."], "experience.parquet is missing"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(store: Store, arguments: list[str], told: str) -> None:
    samples.road(store)
    with pytest.raises(ConfigError, match=told):
        invoke(rl, "--profile", "smoke", "--set", "rl.steps=1", *arguments)
    assert list_runs(Path("home").resolve()) == []


@pytest.mark.parametrize("arguments", [["--out", "x"], ["--replay", ".", "--tasks", "abcdef"]])
def test_options_that_do_not_go_together(store: Store, arguments: list[str]) -> None:
    assert CliRunner().invoke(rl, arguments).exit_code == 2


# --- afm rl --replay


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def replay(step_directory: Path, model_directory: Path, config: Any, output: Path) -> dict[str, float]:
        calls.append((step_directory, model_directory, config.learning_rate, output))
        return {"loss": -0.25, "tokens": 7}

    monkeypatch.setitem(sys.modules, "afm_core.training.rl.replay", SimpleNamespace(replay=replay))
    return calls


def test_replay_trains_on_saved_rollouts(store: Store, replayed: list[tuple[Any, ...]], tmp_path: Path) -> None:
    step = samples.write_step(tmp_path / "step-000001")
    model = samples.road(store)["sft"]
    arguments = ("--replay", step, "--model", model.digest, "--profile", "smoke", "--set", "rl.learning_rate=1e-3")
    document = json.loads(invoke(rl, *arguments, "--json"))
    assert replayed == [(step, store.open(model).path, 1e-3, Path("replay-step-000001"))]
    assert document["update"] == {"loss": -0.25, "tokens": 7}
    assert "-0.25" in invoke(rl, *arguments, "--out", tmp_path / "new")
    assert replayed[-1][-1] == tmp_path / "new"


def test_replay_overwrites_nothing(store: Store, replayed: list[tuple[Any, ...]], tmp_path: Path) -> None:
    step = samples.write_step(tmp_path / "step-000001")
    with pytest.raises(ConfigError, match="is there already"):
        invoke(rl, "--replay", step, "--model", samples.road(store)["sft"].digest, "--out", step)
    assert not replayed


# --- afm run --until


def test_until_is_checked_before_anything_starts_and_kept_by_resume(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="did you mean 'curate'"):
        invoke(run, "--until", "currate")
    given: list[Any] = []
    monkeypatch.setattr("afm_cli.run.execute", lambda *arguments: given.append(arguments))
    for number, until in enumerate(({"until": "sft"}, {})):  # the record of an older version has no end
        parameters = {"profile": "smoke", "overrides": ["rl.seed=1"], **until}
        record = RunRecord(run_id=f"{number}", profile="smoke", started=now(), pid=1, parameters=parameters)
        RunDirectory(Path("home").resolve(), record.run_id).create().save(record)
        invoke(runs, "resume", number)
    assert given == [("smoke", None, ("rl.seed=1",), (), end, False) for end in (RoadStage.SFT, RoadStage.RL)]


# --- afm trajectories show


def test_a_rollout_is_shown_with_its_tokens_and_its_advantage(store: Store, tmp_path: Path) -> None:
    step = samples.write_step(tmp_path / "step-000001")
    document = json.loads(invoke(trajectories, "show", "aaaa", "--in", step, "--json"))
    tokens = document["tokens"]
    assert (tokens["sampled"], tokens["total"]) == (4, 7)
    assert tokens["logprobs"] == {"mean": -1.0, "min": -1.5, "max": -0.5}
    assert list(tokens["policy_versions"].values()) == [2, 2]
    assert tokens["experience"] == {
        "trained": True, "trained_tokens": 4, "group": 7, "staleness": 1,
        "advantage": {"mean": 1.5, "min": 1.5, "max": 1.5},
    }  # fmt: skip
    shown = invoke(trajectories, "show", "aaaa", "--in", step / "trajectories.parquet")
    assert "4 sampled of 7, by policy oldoldoldold (2), newnewnewnew (2)" in shown
    assert "advantage +1.500 on 4 tokens, group 7, staleness 1" in shown
    assert "left out" in invoke(trajectories, "show", "bbbb", "--in", step)


def test_rollouts_are_found_in_a_model_and_after_demonstrations_in_the_store(store: Store) -> None:
    model = samples.commit(store, "rl", ArtifactKind.MODEL, samples.write_rl)
    place = store.open(model).path / "sidecar/rollouts/step-000001/trajectories.parquet"
    for arguments in (["--in", f"model:{model.digest[:8]}"], ["--in", model.digest], []):
        assert json.loads(invoke(trajectories, "show", "aa", *arguments, "--json"))["file"] == str(place)
    with pytest.raises(ConfigError, match="means 2 trajectories"):
        invoke(trajectories, "show", "task")


def test_what_curation_rejected_does_not_hide_the_trajectories_beside_it(store: Store) -> None:
    def fill(output: Path) -> None:
        write_table(trajectories_table([samples.rollout("aaaa")]), output / "trajectories.parquet")
        write_table(rejected_table([Rejection("bbbb", RejectReason.WRONG_ANSWER, "")]), output / "rejected.parquet")

    curated = samples.commit(store, "curate", ArtifactKind.TRAJECTORIES, fill)
    for place in ([], ["--in", f"trajectories:{curated.digest[:8]}"]):
        assert json.loads(invoke(trajectories, "show", "aaaa", *place, "--json"))["id"] == "aaaa"
    assert [row["id"] for row in json.loads(invoke(trajectories, "ls", curated.digest, "--json"))] == ["aaaa"]


def test_a_file_that_is_not_there_is_told_as_one(store: Store) -> None:
    with pytest.raises(ConfigError, match="/nope: no such file"):
        invoke(trajectories, "validate", "/nope", "--grammar", "web")


def test_the_trajectories_of_a_place_are_listed(store: Store, tmp_path: Path) -> None:
    step = samples.write_step(tmp_path / "step-000001")
    rows = json.loads(invoke(trajectories, "ls", step, "--json"))
    assert [(row["id"], row["reward"], row["status"]) for row in rows] == [
        ("aaaa", 1.0, "completed"), ("bbbb", 0.0, "completed"),
    ]  # fmt: skip
    assert "aaaa" in invoke(trajectories, "ls", step / "trajectories.parquet")


@pytest.mark.parametrize(("place", "told"), [("nowhere", "no file"), (".", "holds no trajectories")])
def test_a_place_without_trajectories_is_told(store: Store, place: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        invoke(trajectories, "show", "aaaa", "--in", place)
