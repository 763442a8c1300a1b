"""The stage `teach` over a real local store: what it writes, what it may see, and that a stop costs one shard."""

import threading

import pytest

from afm_core.config import RunConfig
from afm_core.data import AgentTask, Split, documents_table, tasks_table, trajectories_from_table
from afm_core.store import (
    ArtifactKind,
    StageInterrupted,
    StageResult,
    StageSpec,
    open_store,
    read_table,
    write_table,
)
from afm_core.teacher import stages
from afm_core.teacher.stages import teach

SECTIONS = ("teacher", "agent")


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"), tmp_path / "cache")


def put(store, kind, key, **tables):
    spec = StageSpec(stage=kind.value, config={}, store_uri=store.uri)
    with store.attempt(key=key * 64, spec=spec, kind=kind, sections=(), scratch=store.cache / "work") as attempt:
        for name, table in tables.items():
            write_table(table, attempt.output / f"{name}.parquet")
        return attempt.commit(StageResult())


@pytest.fixture
def spec(store, documents, chain_task, single_task, comparison_task, held_out_task):
    tasks = [chain_task, single_task, comparison_task, held_out_task]
    return StageSpec(
        stage="teach",
        config=RunConfig(profile="test").model_dump(mode="json"),
        inputs={
            "corpus": put(store, ArtifactKind.CORPUS, "a", documents=documents_table(documents)),
            "tasks": put(store, ArtifactKind.TASKS, "b", tasks=tasks_table(tasks)),
        },
        store_uri=store.uri,
    )


def run(store, spec, key="c", **options):
    """Run the stage as one attempt; returns (artifact, its metrics)."""
    kind = ArtifactKind.TRAJECTORIES
    work = store.cache / "work"
    with store.attempt(key=key * 64, spec=spec, kind=kind, sections=SECTIONS, scratch=work, **options) as attempt:
        result = teach(attempt)
        return store.open(attempt.commit(result)), result.metrics


def test_only_train_tasks_are_taught_and_nothing_held_out_is_seen(store, spec, held_out_task):
    artifact, metrics = run(store, spec)
    trajectories = trajectories_from_table(read_table(artifact.path / "trajectories.parquet"))
    assert metrics["tasks"] == metrics["trajectories"] == metrics["correct"] == 3
    assert metrics["clairvoyance_problems"] == metrics["without_solution"] == 0
    assert held_out_task.id not in {one.task_id for one in trajectories}
    assert not any("Peru" in segment.text or "Lima" in segment.text for one in trajectories for segment in one.segments)
    events = read_table(artifact.path / "events.parquet")
    assert events.column("id").to_pylist() == sorted(events.column("id").to_pylist())
    assert held_out_task.split == Split.TEST


def test_of_a_pools_version_only_its_additions_are_taught(store, spec, chain_task, single_task, comparison_task):
    """The comparison is new; a task of an older version and one without a path are not taught; Mombasa is held out."""
    bare = AgentTask.create("Who knows?", ("nobody",), component="kenya")
    pool = [single_task, comparison_task, bare]
    added = put(store, ArtifactKind.TASKS, "e", tasks=tasks_table(pool), added=tasks_table(pool[1:]))
    artifact, metrics = run(store, spec.model_copy(update={"inputs": {**spec.inputs, "additions": added}}), key="f")
    trajectories = trajectories_from_table(read_table(artifact.path / "trajectories.parquet"))
    assert [one.task_id for one in trajectories] == [comparison_task.id]
    assert (metrics["tasks"], metrics["without_solution"]) == (2, 1)


def test_what_a_pools_version_holds_out_is_hidden_from_its_demonstrations(store, spec, chain_task):
    held_out = AgentTask.create("Which city is it?", ("Mombasa",), component="kenya", split=Split.GATE)
    added = put(store, ArtifactKind.TASKS, "e", tasks=tasks_table([held_out]), added=tasks_table([chain_task]))
    _, metrics = run(store, spec.model_copy(update={"inputs": {**spec.inputs, "additions": added}}), key="f")
    assert (metrics["tasks"], metrics["correct"]) == (1, 0)


def test_additions_without_any_path_give_an_empty_table(store, spec):
    bare = tasks_table([AgentTask.create("Who knows?", ("nobody",))])
    added = put(store, ArtifactKind.TASKS, "e", tasks=bare, added=bare)
    artifact, metrics = run(store, spec.model_copy(update={"inputs": {**spec.inputs, "additions": added}}), key="f")
    assert read_table(artifact.path / "trajectories.parquet").num_rows == metrics["trajectories"] == 0
    assert metrics["without_solution"] == 1


def test_a_stopped_stage_goes_on_with_its_sealed_shards_and_gives_the_same_bytes(store, spec, monkeypatch):
    monkeypatch.setattr(stages, "SHARD_SIZE", 1)
    whole, _ = run(store, spec, key="d")
    taught = []
    real = stages.demonstrate_all
    monkeypatch.setattr(stages, "demonstrate_all", lambda tasks, *rest: taught.extend(tasks) or real(tasks, *rest))
    stopping = threading.Event()
    with pytest.raises(StageInterrupted):
        run(store, spec, stopping=stopping, progress=lambda done, total, message: stopping.set())
    assert len(taught) == 1
    resumed, metrics = run(store, spec)
    assert len(taught) == 3
    assert resumed.ref.digest == whole.ref.digest
    assert metrics["trajectories"] == 3
