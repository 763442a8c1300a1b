"""The stages evaluate and register in a real store, with a scripted engine and a registry that can be killed."""

import json
import threading

import pytest
from evaluation_fakes import FakeRegistry, ScriptedEngine, World, decide_on, run, sides

from afm_core.data import Split, Status, trajectories_from_table
from afm_core.evaluation import find_entry, load_summary, rows_from_table
from afm_core.store import StageInterrupted, read_table

EVALUATION = {"baseline_limit": 6, "shard_size": 4, "few_shot": 2}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world"), evaluation=EVALUATION)


@pytest.fixture
def engine(world, monkeypatch):
    """Right about everything with one hop, wrong about the rest."""
    scripted = ScriptedEngine(world.tokenizer, world.book(lambda task: task.difficulty.hops == 1))
    monkeypatch.setattr("afm_core.engines.open_engine", lambda *_: scripted)
    return scripted


def test_policy_is_measured_by_hops(world, engine):
    artifact = run(world, "policy", model=world.put_model("sft"))
    summary = load_summary(artifact.path)
    names = [(entry["name"], entry["split"]) for entry in summary["protocols"]]
    assert names == [("agent", "test"), ("closed_book", "test"), ("agent", "gate")]
    entry = find_entry(summary, "agent", "test")
    assert entry["n"] == entry["population"] == len(world.split(Split.TEST))
    assert entry["by_hops"]["1"]["accuracy"] == 1.0
    assert all(part["correct"] == 0 for hops, part in entry["by_hops"].items() if hops != "1")
    assert entry["mean_tool_calls"] == 1.0
    assert find_entry(summary, "closed_book", "test")["n"] == 6
    assert engine.closed


def test_trajectories_are_kept_without_log_probs_and_join_the_rows(world, engine):
    artifact = run(world, "policy", model=world.put_model("sft"))
    rows = rows_from_table(read_table(artifact.path / "rows.parquet"))
    episodes = trajectories_from_table(read_table(artifact.path / "trajectories.parquet"))
    assert [row.id for row in rows] == [episode.id for episode in episodes]
    sampled = [segment for episode in episodes for segment in episode.segments if segment.origin == "sampled"]
    assert all(segment.logprobs is None and segment.token_ids for segment in sampled)


def test_base_is_given_its_fair_chance(world, engine):
    base = run(world, "base", model=world.put_model("base"), demonstrations=world.demonstrations)
    summary = load_summary(base.path)
    found = {(entry["name"], entry["split"]): entry["conditions"] for entry in summary["protocols"]}
    assert found == {
        ("zero_shot", "test"): "zero_shot",
        ("few_shot", "test"): "few_shot",
        ("closed_book", "test"): "closed_book",
        ("agent", "gate"): "few_shot",
    }
    episodes = trajectories_from_table(read_table(base.path / "trajectories.parquet"))
    asked = {one.id.partition("-")[0]: one.segments[0].text for one in episodes}
    assert "Solve the question alone" in asked["zero_shot"]
    assert asked["zero_shot"].count("Question: ") == 1
    assert asked["few_shot"].count("Question: ") == 3


def test_base_and_policy_answer_the_same_tasks(world, engine):
    base = run(world, "base", model=world.put_model("base"), demonstrations=world.demonstrations)
    policy = run(world, "policy", model=world.put_model("sft"))
    sides = [find_entry(load_summary(one.path), "agent", "gate") for one in (base, policy)]
    assert sides[0]["task_set"] == sides[1]["task_set"]
    closed = [find_entry(load_summary(one.path), "closed_book", "test") for one in (base, policy)]
    assert closed[0]["task_set"] == closed[1]["task_set"]


def test_reference_needs_no_model_and_the_teacher_is_the_ceiling(world):
    summary = load_summary(run(world, "reference").path)
    teacher, searching = find_entry(summary, "teacher", "test"), find_entry(summary, "always_search", "test")
    assert teacher["accuracy"] == 1.0
    assert searching["accuracy"] < teacher["accuracy"]
    assert searching["n"] == len(world.split(Split.TEST))


def test_a_stopped_stage_goes_on_and_ends_with_the_same_digest(world, engine, monkeypatch):
    model = world.put_model("resumed")
    whole = run(world, "policy", key="whole", model=model)
    requests = engine.requests
    stopping = threading.Event()
    step, steps = engine.step, []

    def stop_in_the_third_shard():
        steps.append(1)
        if len(steps) == 5:
            stopping.set()
        return step()

    monkeypatch.setattr(engine, "step", stop_in_the_third_shard)
    with pytest.raises(StageInterrupted):
        run(world, "policy", key="stopped", stopping=stopping, model=model)
    monkeypatch.setattr(engine, "step", step)
    before = engine.requests
    resumed = run(world, "policy", key="stopped", model=model)
    assert resumed.ref.digest == whole.ref.digest
    assert engine.requests - before < requests


def test_seconds_are_kept_outside_the_digest(world, engine):
    artifact = run(world, "policy", model=world.put_model("sft"))
    seconds = json.loads((artifact.path / "sidecar" / "seconds.json").read_text())
    assert set(seconds) == {f"agent-test-{n:04d}" for n in range(3)} | {
        *(f"closed_book-test-{n:04d}" for n in range(2)),
        *(f"agent-gate-{n:04d}" for n in range(2)),
    }
    assert "sidecar/seconds.json" not in {file.path for file in artifact.manifest.files}


def test_an_unknown_variant_is_refused(world):
    with pytest.raises(ValueError, match="nonsense"):
        run(world, "nonsense")


def test_a_policy_without_a_model_is_refused(world):
    with pytest.raises(ValueError, match="needs the input 'model'"):
        run(world, "policy", key="no-model")


# --- register


@pytest.fixture
def registry(monkeypatch):
    fake = FakeRegistry()
    holder = type("Registry", (), {"of": staticmethod(lambda config: fake)})
    monkeypatch.setattr("afm_core.tracking.Registry", holder, raising=False)
    return fake


def test_a_winner_becomes_champion_with_its_lineage(world, registry, monkeypatch):
    refs = sides(world, monkeypatch)
    artifact, decision = decide_on(world, refs, "win")
    assert decision["outcome"] == artifact.manifest.metrics["outcome"] == "promoted"
    assert artifact.manifest.metrics["champion"] == refs["challenger"].digest
    assert registry.champion().ref == refs["challenger"]
    tags = registry.tags[registry.alias]
    assert tags["afm.digest"] == refs["challenger"].digest
    assert tags["afm.predecessor"] == refs["champion"].digest


def test_a_loser_touches_no_registry(world, registry, monkeypatch):
    refs = sides(world, monkeypatch)
    turned = {name: refs[other] for name, other in (
        ("challenger", "champion"), ("challenger_evaluation", "champion_evaluation"),
        ("champion", "challenger"), ("champion_evaluation", "challenger_evaluation"))}  # fmt: skip
    artifact, decision = decide_on(world, turned, "lose")
    assert decision["outcome"] == "kept_champion"
    assert artifact.manifest.metrics["champion"] == refs["challenger"].digest
    assert registry.versions == {}


def test_the_champion_itself_is_a_named_no_op(world, registry, monkeypatch):
    refs = sides(world, monkeypatch)
    same = {name: refs["challenger_evaluation" if "evaluation" in name else "challenger"] for name in refs}
    assert decide_on(world, same, "same")[1]["outcome"] == "already_champion"
    assert registry.versions == {}


@pytest.mark.parametrize("dies", ["register", "set_champion"])
def test_killed_between_registering_and_crowning_a_rerun_completes(world, registry, monkeypatch, dies):
    refs = sides(world, monkeypatch)
    registry.dies = dies
    with pytest.raises(ConnectionError):
        decide_on(world, refs, f"killed-{dies}")
    assert registry.champion() is None
    registry.dies = ""
    decide_on(world, refs, f"killed-{dies}")
    assert registry.champion().ref == refs["challenger"]
    assert len(registry.versions) == 1


def test_killed_after_crowning_a_rerun_decides_the_same(world, registry, monkeypatch):
    refs = sides(world, monkeypatch)
    first, _ = decide_on(world, refs, "crowned-1")
    second, _ = decide_on(world, refs, "crowned-2")
    assert first.ref.digest == second.ref.digest
    assert len(registry.versions) == 1


def test_a_champion_crowned_meanwhile_is_not_overthrown(world, registry, monkeypatch):
    refs = sides(world, monkeypatch)
    registry.versions["9"], registry.alias = world.corpus, "9"
    with pytest.raises(RuntimeError, match="run again"):
        decide_on(world, refs, "meanwhile")
    assert registry.alias == "9"


def test_every_row_has_a_status_that_agrees_with_its_reward(world, engine):
    artifact = run(world, "policy", model=world.put_model("sft"))
    for row in rows_from_table(read_table(artifact.path / "rows.parquet")):
        assert row.status is Status.COMPLETED
        assert row.reward in (0.0, 1.0)


@pytest.mark.integration
def test_the_real_registry_holds_the_champion_and_its_lineage(world, monkeypatch, tmp_path):
    from afm_core.config import parse_config
    from afm_core.tracking import Registry

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    refs = sides(world, monkeypatch)
    artifact, _ = decide_on(world, refs, "real")
    champion = Registry.of(parse_config(world.config.model_dump(mode="json"))).champion()
    assert champion.ref == refs["challenger"]
    assert champion.version == artifact.manifest.metrics["version"]
    assert champion.predecessor == refs["champion"].digest
