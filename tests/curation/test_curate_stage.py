"""The stage `curate` with a real Ray over a real store."""

import json

import pytest
from curation_samples import chain_of, closing, reflecting, task_of, trajectory_of

from afm_core.cluster import connected
from afm_core.config import ConfigError, CurationConfig, RunConfig
from afm_core.curation import LeakIndex, curate_rows
from afm_core.curation.dataset import LOCAL_CPUS, judge_parquet
from afm_core.curation.mixing import decide
from afm_core.curation.stages import curate
from afm_core.data import Split, tasks_table, trajectories_from_table, trajectories_table
from afm_core.store import ArtifactKind, StageResult, StageSpec, open_store, read_table, write_table

SETTINGS = {"without_reflection_share": 0.5, "correction_copies": 2}


@pytest.fixture(scope="module")
def sample():
    """(tasks, trajectories): right ones, reflecting ones, duplicates, wrong answers and one leak."""
    tasks = [task_of(f"City{number}", f"Land{number}") for number in range(40)]
    held_out = chain_of("Lima", "Peru", "Sol", split=Split.TEST)
    rows = [trajectory_of(task) for task in tasks] + [reflecting(task) for task in tasks[:10]]
    rows += [row.model_copy(update={"id": f"again-{row.id}"}) for row in rows[:5]]
    rows += [trajectory_of(task, closing("Nowhere")) for task in tasks[:3]]
    rows.append(trajectory_of(tasks[0], closing("Lima")))
    return [*tasks, held_out], rows


@pytest.fixture(scope="module")
def small_ray():
    """One small local Ray for the module."""
    with connected(LOCAL_CPUS):
        yield


def put(store, kind, key, **tables):
    spec = StageSpec(stage=kind.value, config={}, store_uri=store.uri)
    with store.attempt(key=key * 64, spec=spec, kind=kind, sections=(), scratch=store.cache / "work") as attempt:
        for name, table in tables.items():
            write_table(table, attempt.output / f"{name}.parquet")
        return attempt.commit(StageResult())


@pytest.mark.integration
def test_blocks_do_not_matter_and_ray_agrees_with_one_process(sample, small_ray, tmp_path):
    tasks, rows = sample
    config = CurationConfig.model_validate(SETTINGS)
    path = tmp_path / "trajectories.parquet"
    write_table(trajectories_table(rows), path)
    by_id = {task.id: task for task in tasks}
    decisions = [
        decide(judge_parquet(path, by_id, LeakIndex.build(tasks), config, blocks), config) for blocks in (1, 7)
    ]
    assert decisions[0] == decisions[1] == curate_rows(rows, tasks, config)[1]


@pytest.mark.integration
def test_equal_input_gives_equal_bytes_and_every_row_is_accounted_for(sample, small_ray, tmp_path):
    tasks, rows = sample
    store = open_store(str(tmp_path / "store"), tmp_path / "cache")
    config = RunConfig.model_validate({"profile": "test", "curation": SETTINGS}).model_dump(mode="json")
    inputs = {
        "demonstrations": put(store, ArtifactKind.TRAJECTORIES, "a", trajectories=trajectories_table(rows)),
        "tasks": put(store, ArtifactKind.TASKS, "b", tasks=tasks_table(tasks)),
    }
    spec = StageSpec(stage="curate", config=config, inputs=inputs, store_uri=store.uri)
    artifacts = []
    for key in "cd":
        kind, work = ArtifactKind.TRAJECTORIES, store.cache / "work"
        with store.attempt(key=key * 64, spec=spec, kind=kind, sections=("curation", "agent"), scratch=work) as attempt:
            artifacts.append(store.open(attempt.commit(curate(attempt))))
    assert artifacts[0].ref.digest == artifacts[1].ref.digest
    counts = json.loads((artifacts[0].path / "counts.json").read_text())
    rejected = read_table(artifacts[0].path / "rejected.parquet")
    kept = trajectories_from_table(read_table(artifacts[0].path / "trajectories.parquet"))
    assert counts["in"] == len(rows) == counts["kept"] + rejected.num_rows
    assert counts["rejected"]["leak_entity"] == 1
    assert counts["rejected"]["duplicate"] == 5
    assert counts["written"] == len(kept) == counts["kept"] + counts["copies"]
    assert all(
        counts["rejected"][reason] == rejected.column("reason").to_pylist().count(reason) for reason in counts["order"]
    )


@pytest.mark.integration
def test_old_demonstrations_are_replayed_beside_new_ones(small_ray, tmp_path):
    """Three inputs, one of them empty: all rows are judged, the old ones are a third of the mix."""
    tasks = [task_of(f"City{number}", f"Land{number}") for number in range(20)]
    rows = [trajectory_of(task) for task in tasks]
    store = open_store(str(tmp_path / "store"), tmp_path / "cache")
    settings = {"replay_share": 1 / 3, "guessable_share": 1.0}
    config = RunConfig.model_validate({"profile": "test", "curation": settings}).model_dump(mode="json")
    kind = ArtifactKind.TRAJECTORIES
    inputs = {
        "tasks": put(store, ArtifactKind.TASKS, "a", tasks=tasks_table(tasks)),
        "replay": put(store, kind, "b", trajectories=trajectories_table(rows[:14])),
        "demonstrations.1": put(store, kind, "c", trajectories=trajectories_table(rows[14:])),
        "demonstrations.2": put(store, kind, "d", trajectories=trajectories_table([])),
    }

    def run(key, **changes):
        spec = StageSpec(stage="curate", config=config, inputs={**inputs, **changes}, store_uri=store.uri)
        sections, work = ("curation", "agent"), store.cache / "work"
        with store.attempt(key=key * 64, spec=spec, kind=kind, sections=sections, scratch=work) as attempt:
            return store.open(attempt.commit(curate(attempt)))

    artifact = run("e")
    kept = {one.task_id for one in trajectories_from_table(read_table(artifact.path / "trajectories.parquet"))}
    assert (len(kept), {task.id for task in tasks[14:]} <= kept) == (9, True)
    assert json.loads((artifact.path / "counts.json").read_text())["rejected"]["not_replayed"] == 11
    with pytest.raises(ConfigError, match=r"no demonstration of a new task was kept .* --set sft.start=base"):
        run("f", **{"demonstrations.1": inputs["demonstrations.2"]})
