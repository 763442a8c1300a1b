"""The stage `pool` in a real store: the union, what is new in it, and what this profile cannot take."""

import json
from pathlib import Path

from pool_helpers import SHARES, add, known_with, local

from afm_core.config import RunConfig
from afm_core.data import (
    AgentTask,
    Document,
    Split,
    documents_table,
    new_tasks,
    tasks_from_table,
    tasks_table,
)
from afm_core.store import Artifact, ArtifactKind, ArtifactRef, StageResult, StageSpec, Store, read_table, write_table
from afm_core.taskcraft import GoodRow, PoolVersion, Selection, publish_rows
from afm_core.taskcraft.pool_stage import join_pool


def _put(store: Store, kind: ArtifactKind, **tables) -> ArtifactRef:
    spec = StageSpec(stage=kind.value, config={}, store_uri=store.uri)
    with store.attempt(key=kind.value, spec=spec, kind=kind, sections=(), scratch=store.cache / "work") as attempt:
        if attempt.committed is not None:
            return attempt.committed
        for name, table in tables.items():
            write_table(table, attempt.output / f"{name}.parquet")
        return attempt.commit(StageResult())


def _join(store: Store, base: list[AgentTask], documents: list[Document], **pool: PoolVersion | None) -> Artifact:
    inputs = {
        "corpus": _put(store, ArtifactKind.CORPUS, documents=documents_table(documents)),
        "tasks": _put(store, ArtifactKind.TASKS, tasks=tasks_table(base)),
        **{role: version.ref for role, version in pool.items() if version},
    }
    config = RunConfig(profile="test").model_dump(mode="json")
    spec = StageSpec(stage="pool", config=config, inputs=inputs, store_uri=store.uri)
    key = "-".join(["pool", *sorted(pool)])
    with store.attempt(
        key=key, spec=spec, kind=ArtifactKind.TASKS, sections=(), scratch=store.cache / "work"
    ) as attempt:
        return store.open(attempt.commit(join_pool(attempt)))


def test_the_union_and_what_is_new_since_a_known_version(
    tmp_path: Path, micro: list[Document], micro_tasks: Selection
) -> None:
    store = local(tmp_path)
    first, second = add(store, "A?").head, add(store, "B?", "C?").head
    base = micro_tasks.tasks[:20]
    joined = _join(store, base, micro, pool=second, known=first)
    found = tasks_from_table(read_table(joined.path / "tasks.parquet"))
    assert {task.question for task in found} == {task.question for task in base} | {"A?", "B?", "C?"}
    fresh = new_tasks(joined.path)
    assert (fresh.pool, fresh.version, fresh.known) == ("default", 2, 1)
    assert {task.question for task in found if task.id in fresh.tasks} == {"B?", "C?"}
    metrics = joined.manifest.metrics
    assert metrics["new"] == sum(metrics[f"new/{split}"] for split in Split) == 2
    assert metrics["new/train_without_solution"] == metrics["new/train"]
    everything = new_tasks(_join(store, base, micro, pool=second).path)
    assert (everything.known, len(everything.tasks)) == (0, 3)


def test_rows_that_leak_in_this_profile_are_left_out_and_counted(
    tmp_path: Path, micro: list[Document], micro_tasks: Selection
) -> None:
    """The pool was filled under another profile, which knew none of these tasks."""
    store = local(tmp_path)
    test = next(task for task in micro_tasks.tasks if task.split is Split.TEST)
    train = next(task for task in micro_tasks.tasks if task.split is Split.TRAIN)
    tasks = [
        AgentTask.create(test.question, ("yes",)),
        AgentTask.create(train.question, ("yes",)),
        AgentTask.create("In train?", ("yes",), component=test.component),
    ]
    forced = [GoodRow(number, task, True, None) for number, task in enumerate(tasks)]
    head = publish_rows(store, "default", forced, known_with, SHARES, tmp_path / "scratch").head
    joined = _join(store, micro_tasks.tasks, micro, pool=head)
    metrics = joined.manifest.metrics
    assert metrics["left_out/leak_test"] == 1
    assert metrics["left_out/leak_entities"] == 1
    assert metrics["left_out/known"] == 1
    assert metrics["new"] == 0
    assert json.loads((joined.path / "new.json").read_text())["tasks"] == []
