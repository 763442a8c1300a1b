"""A task set that grew: new and old tasks are measured and judged apart, and every challenger is recorded."""

import pytest
from evaluation_fakes import FakeRegistry, ScriptedEngine, World, decide_on, run, sides

from afm_core.data import NewTasks, Split, tasks_table
from afm_core.evaluation import find_entry, load_summary
from afm_core.store import ArtifactKind, StageResult, write_table
from afm_core.tracking import Champion


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world"), evaluation={"baseline_limit": 6, "shard_size": 4, "few_shot": 2})


@pytest.fixture
def registry(monkeypatch):
    fake = FakeRegistry()
    holder = type("Registry", (), {"of": staticmethod(lambda config: fake)})
    monkeypatch.setattr("afm_core.tracking.Registry", holder, raising=False)
    return fake


def grown(world, new, name="grown"):
    """The world's tasks, of which `new` are new."""

    def write(context):
        write_table(tasks_table(world.tasks), context.output / "tasks.parquet")
        NewTasks(pool="default", version=2, known=1, tasks=tuple(sorted(task.id for task in new))).write(context.output)
        return StageResult()

    return world.run("pool", ArtifactKind.TASKS, write, {}, key=f"key-{name}")


def test_new_and_old_tasks_are_sampled_apart(world, monkeypatch):
    scripted = ScriptedEngine(world.tokenizer, world.book())
    monkeypatch.setattr("afm_core.engines.open_engine", lambda *_: scripted)
    new = world.split(Split.GATE)[:3] + world.split(Split.TEST)[:1]
    limited = world.config.model_copy(
        update={"evaluation": world.config.evaluation.model_copy(update={"gate_limit": 4})}
    )
    monkeypatch.setattr(world, "config", limited)
    artifact = run(world, "policy", key="grown", model=world.put_model("sft"), tasks=grown(world, new))
    entry = find_entry(load_summary(artifact.path), "agent", "gate")
    assert (entry["n"], entry["population"]) == (3 + 4, 8)
    assert (entry["by_age"]["new"]["n"], entry["by_age"]["old"]["n"]) == (3, 4)
    assert find_entry(load_summary(artifact.path), "agent", "test")["by_age"]["new"]["n"] == 1


@pytest.mark.parametrize("count", [8, 5])
def test_a_retrained_model_is_judged_on_the_new_tasks_and_recorded_either_way(world, registry, monkeypatch, count):
    registry.find = lambda digest: None
    refs = sides(world, monkeypatch) | {"tasks": grown(world, world.split(Split.GATE)[:count], f"grown-{count}")}
    artifact, decision = decide_on(world, refs, f"grown-{count}")
    (version,) = registry.versions
    tags = registry.tags[version]
    assert set(decision["groups"]) == {"new", "old"}
    assert artifact.manifest.metrics["version"] == version
    assert tags["afm.outcome"] == decision["outcome"] == ("promoted" if count == 8 else "refused_too_few")
    assert (tags["afm.reason"], tags["afm.pool"]) == (decision["reason"], "default")
    assert (tags["afm.pool.version"], tags["afm.pool.known"]) == ("2", "1")
    assert registry.alias == (version if count == 8 else None)


def test_a_former_champion_that_is_rejected_keeps_what_it_tells_of_its_past(world, registry, monkeypatch):
    refs = sides(world, monkeypatch)
    refs |= {"tasks": grown(world, world.split(Split.GATE)[:5], "grown-5")}
    known = Champion("7", refs["challenger"], {"afm.predecessor": "x"})
    written = {}
    registry.find = lambda digest: known if digest == known.ref.digest else None
    registry.tag = lambda version, tags: written.update({version: tags})
    artifact, decision = decide_on(world, refs, "former")
    assert written == {"7": {"afm.outcome": "refused_too_few", "afm.reason": decision["reason"]}}
    assert (registry.versions, artifact.manifest.metrics["version"]) == ({}, "7")


def test_the_plain_road_cannot_dethrone_a_champion_that_was_trained_for_a_pool(world, registry, monkeypatch):
    refs = sides(world, monkeypatch)
    pool = {"afm.pool": "default", "afm.pool.version": "2"}
    registry.alias, registry.versions, registry.tags = "1", {"1": refs["champion"]}, {"1": pool}
    artifact, decision = decide_on(world, refs, "plain")
    assert decision["outcome"] == "refused_pool"
    assert "default@2" in decision["reason"]
    assert artifact.manifest.metrics["champion"] == refs["champion"].digest
    assert registry.alias == "1"
