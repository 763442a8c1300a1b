"""Dropped files: every row exactly once, whatever polls overlap and whoever is killed."""

import json
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_helpers import SHARES, DyingBackend, Killed, drop, killed_process, known_with, local

from afm_core.store import Store
from afm_core.taskcraft import Ingested, poll_once, pool_head, pool_tasks, pool_versions


def _poll(store: Store, scratch: str = "scratch") -> list[Ingested]:
    return poll_once(store, "default", known_with, SHARES, store.cache / scratch, settle_seconds=0)


def _questions(store: Store) -> list[str]:
    return sorted(task.question for task in pool_tasks(store, pool_head(store, "default")))


def _names(store: Store, place: str) -> list[str]:
    return sorted(store.backend.walk(place))


def test_a_file_becomes_a_version_and_is_moved(tmp_path: Path) -> None:
    store = local(tmp_path)
    drop(store, "new.jsonl", "A?", "B?", extra=b'{"question": "C?"}\n')
    (one,) = _poll(store)
    assert (one.version.version, len(one.admission.added), len(one.admission.rejected)) == (1, 2, 1)
    assert _questions(store) == ["A?", "B?"]
    assert _names(store, "incoming") == []
    assert [f"incoming-done/{name}" for name in _names(store, "incoming-done")] == [one.moved_to]
    (reject,) = [json.loads(line) for line in store.backend.read(one.rejects).splitlines()]
    assert reject == {"row": 3, "field": "answers", "reason": "missing or empty", "original": {"question": "C?"}}
    assert _poll(store) == []


@pytest.mark.parametrize("content", [b"", b"\x89PNG\0\0\0", b"not json at all\n", b"PAR1 and no table"])
def test_a_file_without_a_task_is_moved_to_rejected_with_its_reasons(tmp_path: Path, content: bytes) -> None:
    store = local(tmp_path)
    store.backend.write("incoming/rejects.jsonl", content)
    (one,) = _poll(store)
    assert one.moved_to.startswith("rejected/rejects.jsonl-")
    assert store.backend.read(one.moved_to) == content
    (line,) = store.backend.read(one.rejects).splitlines()
    assert str(tmp_path) not in json.loads(line)["reason"]
    assert (_names(store, "incoming"), pool_head(store, "default")) == ([], None)


def test_a_file_that_fails_keeps_no_other_waiting(tmp_path: Path, monkeypatch) -> None:
    store = local(tmp_path)
    for name in ("1.jsonl", "2.jsonl"):
        drop(store, name, f"{name}?")
    chunks = store.backend.chunks

    def broken(path: str):
        if path.endswith("1.jsonl"):
            raise OSError("bad sector")
        return chunks(path)

    monkeypatch.setattr(store.backend, "chunks", broken)
    with pytest.raises(OSError, match="bad sector"):
        _poll(store)
    assert _questions(store) == ["2.jsonl?"]
    assert _names(store, "incoming") == ["1.jsonl"]


def test_a_file_that_grows_is_left_for_the_next_poll(tmp_path: Path, monkeypatch) -> None:
    store = local(tmp_path)
    drop(store, "slow.jsonl", "A?")
    monkeypatch.setattr("time.sleep", lambda _: drop(store, "slow.jsonl", "A?", "B?"))
    assert poll_once(store, "default", known_with, SHARES, tmp_path / "scratch", settle_seconds=1) == []
    monkeypatch.undo()
    _poll(store)
    assert _questions(store) == ["A?", "B?"]


def test_unfinished_names_are_not_looked_at(tmp_path: Path) -> None:
    store = local(tmp_path)
    for name in (".hidden.jsonl", "upload.jsonl.part", "x.tmp", ".folder/y.jsonl"):
        drop(store, name, "A?")
    assert _poll(store) == []
    assert len(_names(store, "incoming")) == 4


def test_what_was_appended_while_the_file_was_taken_in_comes_with_the_next_poll(tmp_path: Path, monkeypatch) -> None:
    store = local(tmp_path)
    drop(store, "late.jsonl", "A?")
    put = store.backend.put

    def put_and_append(*arguments):
        drop(store, "late.jsonl", "A?", "B?")
        return put(*arguments)

    monkeypatch.setattr(store.backend, "put", put_and_append)
    _poll(store)
    monkeypatch.undo()
    assert _names(store, "incoming") == ["late.jsonl"]
    _poll(store)
    assert _questions(store) == ["A?", "B?"]


@settings(max_examples=6)
@given(st.lists(st.lists(st.sampled_from("ABCDEFGH"), min_size=1, max_size=5), min_size=1, max_size=4))
def test_two_polls_at_once_publish_each_row_once(tmp_path_factory, files: list[list[str]]) -> None:
    store = local(tmp_path_factory.mktemp("polls"))
    for number, letters in enumerate(files):
        drop(store, f"{number}.jsonl", *(f"{letter}?" for letter in letters))
    found: list[Ingested] = []
    threads = [threading.Thread(target=lambda n=n: found.extend(_poll(store, f"scratch{n}"))) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = sorted({f"{letter}?" for letters in files for letter in letters})
    assert _questions(store) == wanted
    assert sum(len(one.admission.added) for one in found) == len(wanted)
    assert (_names(store, "incoming"), len(_names(store, "incoming-done"))) == ([], len(files))
    assert len(pool_versions(store, "default")) <= len(files)


def test_a_poll_killed_at_any_step_is_completed_by_the_next_one(tmp_path: Path, monkeypatch) -> None:
    digests, steps, done = set(), 0, False
    while not done:
        store = local(tmp_path / str(steps))
        drop(store, "new.jsonl", "A?", "B?", extra=b"bad\n")
        honest = store.backend
        store.backend = DyingBackend(honest, steps)
        with monkeypatch.context() as patched:
            for module in ("attempt", "claims"):
                patched.setattr(f"afm_core.store.{module}.this_process", killed_process)
            with suppress(Killed):
                done = len(_poll(store)) == 1
        store.backend = honest
        _poll(store)
        digests.add(pool_head(store, "default").ref.digest)
        assert _questions(store) == ["A?", "B?"]
        assert pool_head(store, "default").version == 1
        assert _names(store, "incoming") == []
        assert len(_names(store, "incoming-done")) == 1
        assert len(_names(store, "rejected")) == 1
        steps += 1
    assert len(digests) == 1
    assert steps > 8
