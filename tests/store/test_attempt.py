"""Attempts: commit, caching, generations, sealed work, races. Over a directory and a real S3 server."""

import threading
from pathlib import Path

import pytest
from store_helpers import KEY, commit, failing, spec_for

from afm_core.config import SftConfig, TasksConfig
from afm_core.store import (
    ArtifactKind,
    ArtifactMissing,
    StageAttempt,
    StageInterrupted,
    StageResult,
    Store,
    open_store,
)


def attempt(store: Store, scratch: Path, **options: object) -> StageAttempt:
    spec = options.pop("spec", None) or spec_for(store)
    defaults = {"key": KEY, "spec": spec, "kind": ArtifactKind.CORPUS, "sections": (), "scratch": scratch}
    return store.attempt(**{**defaults, **options})


def test_committed_artifact_is_found_and_not_made_again(store: Store, tmp_path: Path):
    assert store.lookup(KEY) is None
    reference = commit(store, files={"a/b.txt": b"one", "sidecar/seconds.json": b"{}"})
    with attempt(store, tmp_path) as again:
        assert again.committed == reference
    opened = store.open(reference)
    assert (opened.path / "a/b.txt").read_bytes() == b"one"
    assert (opened.path / "sidecar/seconds.json").exists()
    assert [one.path for one in opened.manifest.files] == ["a/b.txt"]


def test_equal_content_gives_an_equal_digest_whatever_the_sidecar(store: Store):
    first = commit(store, "a" * 64, {"x": b"1", "sidecar/time": b"10"})
    second = commit(store, "b" * 64, {"x": b"1", "sidecar/time": b"20"})
    assert first.digest == second.digest
    assert first.uri != second.uri


def test_refresh_makes_a_new_generation_and_readers_get_the_newest(store: Store):
    old = commit(store, files={"x": b"1"})
    number = store.next_generation(KEY)
    new = commit(store, files={"x": b"2"}, generation=number)
    assert commit(store, files={"x": b"3"}, generation=number) == new  # a retry of the refresh is cached
    assert store.ref(store.lookup(KEY)) == new
    assert (store.open(old).path / "x").read_bytes() == b"1"


def test_artifact_with_a_missing_file_is_quarantined_and_made_again(store: Store):
    lost = commit(store, files={"x": b"1", "y": b"2"})
    store.backend.delete(f"work/{KEY}/0001/data/y")
    assert store.lookup(KEY) is None
    with pytest.raises(ArtifactMissing):
        store.manifest(lost)
    renewed = commit(store, files={"x": b"1", "y": b"2"})
    assert renewed.digest == lost.digest
    assert store.lookup(KEY).generation == 1
    assert store.open(lost).ref == renewed  # an equal artifact serves the old reference


def test_failed_stage_leaves_nothing_and_frees_the_key(store: Store, tmp_path: Path):
    with failing(attempt(store, tmp_path)) as one:
        (one.output / "half").write_bytes(b"x")
    assert store.lookup(KEY) is None
    assert store.backend.walk(f"work/{KEY}/0001/data") == {}
    assert list(tmp_path.glob("corpus-*")) == []
    assert commit(store).digest


@pytest.mark.parametrize(("files", "rows"), [({}, {}), ({"sidecar/t": b"1"}, {}), ({"x": b"1"}, {"y.parquet": 3})])
def test_output_that_cannot_be_an_artifact_is_refused(local_store: Store, tmp_path: Path, files, rows):
    with failing(attempt(local_store, tmp_path)) as one:
        for name, content in files.items():
            (one.output / name).parent.mkdir(exist_ok=True)
            (one.output / name).write_bytes(content)
        with pytest.raises(ValueError, match="the stage"):
            one.commit(StageResult(rows=rows))
    assert local_store.lookup(KEY) is None


def test_committed_file_does_not_follow_its_source(local_store: Store, tmp_path: Path):
    source = tmp_path / "weights"
    source.write_bytes(b"1")
    with attempt(local_store, tmp_path) as one:
        (one.output / "hard").hardlink_to(source)
        (one.output / "soft").symlink_to(source)
        reference = one.commit(StageResult())
    source.write_bytes(b"2")
    opened = local_store.open(reference).path
    assert (opened / "hard").read_bytes() == (opened / "soft").read_bytes() == b"1"
    assert [one.problems for one in local_store.verify()] == [()]


def test_only_declared_sections_are_visible(local_store: Store, tmp_path: Path):
    spec = spec_for(local_store, config={"tasks": {"seed": 5}, "sft": {"seed": 6}})
    with attempt(local_store, tmp_path, spec=spec, sections=("tasks",)) as one:
        assert one.section(TasksConfig).seed == 5
        with pytest.raises(AssertionError, match="SftConfig"):
            one.section(SftConfig)
        (one.output / "x").write_bytes(b"1")
        one.commit(StageResult(metrics={"loss": float("nan")}))
    manifest = local_store.lookup(KEY)
    assert manifest.config["tasks"]["seed"] == 5
    assert set(manifest.config) == {"tasks"}
    assert manifest.metrics == {"loss": "nan"}


def test_inputs_are_opened_and_become_parents(store: Store, tmp_path: Path):
    parent = commit(store, "b" * 64, {"x": b"1"})
    spec = spec_for(store, inputs={"corpus": parent.model_dump()})
    with attempt(store, tmp_path, spec=spec) as one:
        assert (one.inputs["corpus"].path / "x").read_bytes() == b"1"
        (one.output / "y").write_bytes(b"2")
        child = one.commit(StageResult())
    node = store.lineage(child)
    assert node.parents["corpus"].ref == parent
    assert [one.ref.digest for one in node.walk()] == [child.digest, parent.digest]
    assert node.as_json()["parents"]["corpus"]["artifact"]["digest"] == parent.digest


def test_missing_input_is_an_error_and_frees_the_key(store: Store, tmp_path: Path):
    parent = commit(store, "b" * 64)
    store.backend.delete(f"work/{'b' * 64}/0001")
    spec = spec_for(store, inputs={"corpus": parent.model_dump()})
    with pytest.raises(ArtifactMissing, match="corpus"), attempt(store, tmp_path, spec=spec):
        pass
    assert commit(store).digest


def seal_text(one: StageAttempt, name: str, text: str) -> None:
    file = one.scratch / "file.txt"
    file.write_text(text)
    one.seal(name, file)


def test_sealed_work_survives_a_failure_and_the_newest_seal_wins(store: Store, tmp_path: Path):
    with failing(attempt(store, tmp_path)) as first:
        seal_text(first, "rows/1", "old")
        seal_text(first, "rows/1", "new")
        seal_text(first, "rows/2", "two")
        seal_text(first, "step-1", "forgotten")
        directory = first.scratch / "checkpoint" / "deep"
        directory.mkdir(parents=True)
        (directory / "w").write_bytes(b"w")
        first.seal("step-2", directory.parent)
    with failing(attempt(store, tmp_path)) as second:
        second.unseal("step-1")
        seal_text(second, "rows/2", "2")
        found = second.sealed()
        assert list(found) == ["rows/1", "rows/2", "step-2"]
        assert [found[name].read_text() for name in ("rows/1", "rows/2")] == ["new", "2"]
        assert (found["step-2"] / "deep" / "w").read_bytes() == b"w"
        assert list(second.sealed("rows/")) == ["rows/1", "rows/2"]
    with attempt(store, tmp_path) as third:
        assert list(third.sealed()) == ["rows/1", "rows/2", "step-2"]
        (third.output / "x").write_bytes(b"1")
        third.commit(StageResult())
    assert store.backend.walk(f"work/{KEY}/0003/checkpoints") == {}


def test_damaged_or_unfinished_seals_do_not_exist(store: Store, tmp_path: Path):
    with failing(attempt(store, tmp_path)) as first:
        seal_text(first, "good", "good")
        seal_text(first, "flipped", "flipped")
    for path in store.backend.walk(f"work/{KEY}/0001/checkpoints/flipped"):
        store.backend.write(f"work/{KEY}/0001/checkpoints/flipped/{path}", b"flippeD")
    store.backend.write(f"work/{KEY}/0001/checkpoints/unfinished/0/x", b"1")
    with attempt(store, tmp_path) as second:
        assert list(second.sealed()) == ["good"]


def test_sealed_work_of_another_generation_is_not_used(store: Store, tmp_path: Path):
    with failing(attempt(store, tmp_path)) as first:
        seal_text(first, "step-1", "1")
    with attempt(store, tmp_path, generation=1) as refreshed:
        assert refreshed.sealed() == {}


@pytest.mark.parametrize("name", ["", "/x", "a/../b", "a//b", "a" * 300])
def test_unusable_seal_names_are_refused(local_store: Store, tmp_path: Path, name: str):
    with attempt(local_store, tmp_path) as one, pytest.raises(ValueError, match="seal"):
        one.seal(name, tmp_path)


def test_progress_and_metrics_reach_their_sinks(local_store: Store, tmp_path: Path):
    seen: list[object] = []
    sinks = {"progress": lambda *one: seen.append(one), "metrics": lambda *one: seen.append(one)}
    with attempt(local_store, tmp_path, **sinks) as one:
        one.progress(1, 2, "half")
        one.log_metrics({"loss": 1.0}, 3)
    assert seen == [(1, 2, "half"), ({"loss": 1.0}, 3)]


def test_racing_attempts_make_one_artifact_and_all_return_it(store: Store, tmp_path: Path):
    barrier, results, made = threading.Barrier(4), [], []

    def race(number: int) -> None:
        own = open_store(store.uri, tmp_path / "cache", store.timing)
        barrier.wait()
        with attempt(own, tmp_path) as one:
            if one.committed is None:
                made.append(number)
                (one.output / "x").write_text(f"writer {number}")
                one.commit(StageResult())
            results.append(one.committed)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(results) == 4
    assert len({one.uri for one in results}) == 1


def test_late_loser_discards_its_copy_and_returns_the_winners_artifact(store: Store, tmp_path: Path):
    with attempt(store, tmp_path) as slow:
        (slow.output / "x").write_text("slow")
        store.leases().finish(slow.holder, "failed")  # as if it had been taken for dead
        winner = commit(store, files={"x": b"fast"})
        assert slow.commit(StageResult()) == winner
    assert store.backend.walk(f"work/{KEY}/0001") == {}
    assert len(store.ls()) == 1
    assert (store.open(winner).path / "x").read_bytes() == b"fast"


def test_waiting_attempt_stops_when_told(local_store: Store, tmp_path: Path):
    stopping = threading.Event()
    with attempt(local_store, tmp_path):
        waiting = attempt(local_store, tmp_path, stopping=stopping, on_wait=lambda holder: stopping.set())
        with pytest.raises(StageInterrupted), waiting:
            pass
