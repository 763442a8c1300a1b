"""Finding, verifying and collecting artifacts."""

import dataclasses
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_helpers import FAST, KEY, commit, failing, spec_for

from afm_core.config import ConfigError
from afm_core.store import ArtifactCorrupt, ArtifactKind, ArtifactMissing, Store, open_store
from afm_core.store.lease import Holder, this_process

OTHER = "b" * 64


def overwrite(store: Store, path: str, data: bytes) -> None:
    store.backend.write(path, data)


def test_find_by_digest_prefix_kind_and_uri(store: Store):
    corpus = commit(store, KEY, {"x": b"1"})
    tasks = commit(store, OTHER, {"x": b"1"}, kind=ArtifactKind.TASKS)
    for text in (corpus.digest, corpus.digest[:8], f"corpus:{corpus.digest[:6]}", corpus.uri):
        assert store.find(text) == corpus
    assert store.find(tasks.digest[:10], ArtifactKind.TASKS) == tasks
    assert [one.kind for one in store.ls()] == ["corpus", "tasks"]
    assert [store.ref(one) for one in store.ls(ArtifactKind.TASKS)] == [tasks]


@pytest.mark.parametrize(
    ("text", "message"), [("abc", "at least 6"), ("0" * 64, "no artifact"), ("model:" + "0" * 9, "no model")]
)
def test_unknown_artifacts_are_explained(local_store: Store, text: str, message: str):
    commit(local_store)
    with pytest.raises(ConfigError, match=message):
        local_store.find(text)


def test_verify_names_the_flipped_file_and_quarantines_it(store: Store):
    good = commit(store, OTHER, {"x": b"fine"})
    bad = commit(store, KEY, {"a": b"aaaa", "deep/b": b"bbbb"})
    overwrite(store, f"work/{KEY}/0001/data/deep/b", b"bbXb")
    problems = {one.ref: one.problems for one in store.verify()}
    assert problems[good] == ()
    assert len(problems[bad]) == 1
    assert problems[bad][0].startswith("deep/b: its content was changed")
    assert store.lookup(KEY) is None
    assert [one.ref for one in store.verify()] == [good]


def test_what_is_quarantined_is_told_until_its_files_are_collected(store: Store):
    bad = commit(store)
    overwrite(store, f"work/{KEY}/0001/data/rows.txt", b"hellO")
    store.verify()
    (found,) = store.quarantine_list()
    assert (found.ref, found.stage, found.generation, found.replaced) == (bad, "corpus", 0, False)
    assert found.reason.startswith("rows.txt: ")
    with pytest.raises(ConfigError, match=r"is quarantined \(rows\.txt: "):
        store.find(bad.digest[:8])
    commit(store)
    assert [one.replaced for one in store.quarantine_list()] == [True]
    store.gc(dry_run=False)
    assert store.quarantine_list() == []


def test_reading_makes_no_store(tmp_path: Path):
    store = open_store(str(tmp_path / "absent" / "store"), tmp_path / "cache", create=False)
    assert not store.exists
    assert (store.ls(), store.verify(), store.quarantine_list(), store.gc().garbage) == ([], [], [], ())
    with pytest.raises(ConfigError, match="no artifact"):
        store.find("a" * 64)
    assert list(tmp_path.iterdir()) == []
    open_store(store.uri, tmp_path / "cache")
    assert store.exists


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_any_flipped_byte_of_data_manifest_or_pointer_is_found(tmp_path_factory, place, mask):
    directory = tmp_path_factory.mktemp("store")
    store = open_store(str(directory / "store"), directory / "cache", FAST)
    commit(store, files={"a": b"some bytes", "sidecar/b": b"more"})
    root = Path(store.uri)
    files = [
        *(root / "keys").rglob("*.json"),
        *(root / "work").rglob("manifest.json"),
        *(root / "work").rglob("data/*"),
    ]
    files = [one for one in files if one.is_file()] + [root / f"work/{KEY}/0001/data/sidecar/b"]
    target = files[place % len(files)]
    content = bytearray(target.read_bytes())
    content[place % len(content)] ^= mask
    target.chmod(0o644)
    target.write_bytes(content)
    results = store.verify()
    hint = target.parent.parent.name == "keys"  # kind and digest in a pointer only repeat the manifest
    assert any(one.problems for one in results) or hint


@pytest.mark.parametrize("path", ["keys/{}/0000.json", "work/{}/0001/manifest.json"])
def test_verify_names_an_artifact_whose_manifest_or_pointer_is_damaged(local_store: Store, path: str):
    reference = commit(local_store)
    overwrite(local_store, path.format(KEY), b"damaged")
    (result,) = local_store.verify()
    assert result.ref == reference
    assert "cannot be read" in result.problems[0] or "not the one" in result.problems[0]


def test_manifest_that_was_edited_is_never_served(store: Store):
    reference = commit(store)
    path = f"work/{KEY}/0001/manifest.json"
    overwrite(store, path, store.backend.read(path).replace(b'"corpus"', b'"models"'))
    assert store.lookup(KEY) is None
    with pytest.raises(ArtifactMissing):
        store.open(reference)


def test_moved_store_still_opens_old_references(local_store: Store, tmp_path: Path):
    reference = commit(local_store, files={"x": b"1"})
    os.rename(local_store.uri, tmp_path / "moved")
    moved = open_store(str(tmp_path / "moved"), tmp_path / "cache")
    assert (moved.open(reference).path / "x").read_bytes() == b"1"


@pytest.mark.integration
def test_download_with_a_flipped_byte_is_refused(s3_environment: str, tmp_path: Path):
    store = open_store(s3_environment, tmp_path / "cache", FAST)
    reference = commit(store, files={"x": b"good"})
    overwrite(store, f"work/{KEY}/0001/data/x", b"gooD")
    with pytest.raises(ArtifactCorrupt, match="not what was committed"):
        store.open(reference)
    assert store.lookup(KEY) is None


def test_lineage_marks_what_is_gone(local_store: Store):
    parent = commit(local_store, OTHER)
    child = commit(local_store, KEY, {"y": b"2"}, inputs={"corpus": parent.model_dump()})
    local_store.quarantine(OTHER, 0, "test")
    node = local_store.lineage(child)
    assert not node.missing
    assert node.parents["corpus"].missing


def failed_attempt(store: Store, key: str, scratch: Path) -> None:
    kind = ArtifactKind.CORPUS
    with failing(store.attempt(key=key, spec=spec_for(store), kind=kind, sections=(), scratch=scratch)) as one:
        (one.scratch / "c").write_bytes(b"checkpoint")
        one.seal("step-1", one.scratch / "c")


def test_gc_keeps_artifacts_and_resumable_work_and_reports_bytes(store: Store, tmp_path: Path):
    failed_attempt(store, KEY, tmp_path)
    store.backend.write(f"work/{KEY}/0001/data/half", b"12345")
    failed_attempt(store, OTHER, tmp_path)
    reference = commit(store, OTHER)
    dry = store.gc()
    assert dry.dry_run
    assert {one.path for one in dry.garbage} == {f"work/{KEY}/0001/data", f"work/{OTHER}/0001"}
    assert dry.bytes > 5
    assert store.gc(dry_run=False).bytes == dry.bytes
    assert store.gc().garbage == ()
    assert store.open(reference).manifest.epoch == 2
    assert "seals/step-1.json" in store.backend.walk(f"work/{KEY}/0001")
    store.gc(unfinished=True, dry_run=False)
    assert store.backend.walk(f"work/{KEY}/0001") == {}


def test_gc_deletes_quarantined_data_but_never_reuses_its_generation(store: Store):
    commit(store)
    store.quarantine(KEY, 0, "test")
    store.gc(dry_run=False)
    assert store.backend.walk(f"work/{KEY}/0001/data") == {}
    commit(store)
    assert store.lookup(KEY).generation == 1


def test_gc_with_roots_keeps_their_ancestors_only(store: Store):
    parent = commit(store, OTHER, {"x": b"parent"})
    child = commit(store, KEY, {"x": b"child"}, inputs={"corpus": parent.model_dump()})
    commit(store, "c" * 64, {"x": b"unrelated"})
    store.gc([child], dry_run=False)
    assert [store.ref(one) for one in store.ls()] == [parent, child]
    assert store.backend.walk("work/" + "c" * 64 + "/0001") == {}


def test_gc_touches_nothing_that_a_live_lease_holds(store: Store, tmp_path: Path):
    parent = commit(store, OTHER, {"x": b"parent"})
    failed_attempt(store, KEY, tmp_path)
    spec = spec_for(store, inputs={"corpus": parent.model_dump()})
    with store.attempt(key=KEY, spec=spec, kind=ArtifactKind.CORPUS, sections=(), scratch=tmp_path) as one:
        report = store.gc([], unfinished=True, dry_run=False)
        assert report.garbage == ()
        assert len(report.live) == 1
        assert list(one.sealed()) == ["step-1"]
    assert {one.path for one in store.gc([]).garbage} >= {f"keys/{OTHER}/0000.json", f"work/{OTHER}/0001"}


@pytest.mark.parametrize("beats", [True, False])
def test_gc_watches_a_holder_elsewhere_until_it_moves_or_is_dead(local_store: Store, beats: bool):
    clock = [0.0]
    holder = Holder(key=KEY, epoch=1, process=dataclasses.replace(this_process(), host="elsewhere"))
    lock = threading.Lock()

    def sleep(seconds: float) -> None:
        with lock:
            clock[0] += 1.0
            if beats:
                local_store.backend.write(f"work/{KEY}/0001/heartbeat", str(clock[0]).encode())

    timing = dataclasses.replace(FAST, clock=lambda: clock[0], sleep=sleep)
    store = Store(local_store.backend, local_store.cache, timing)
    store.leases().take(holder)
    store.backend.write(f"work/{KEY}/0001/data/x", b"1")
    report = store.gc()
    assert bool(report.live) is beats
    assert bool(report.garbage) is not beats
