"""Task pools: immutable versions, exactly one writer a version, nothing lost, nothing twice."""

import json
import threading
from pathlib import Path

import pytest
from pool_helpers import SHARES, DyingBackend, Killed, add, killed_process, known_with, local, rows

from afm_core.config import ConfigError
from afm_core.data import ADDED_FILE
from afm_core.store import ArtifactKind, Store
from afm_core.taskcraft import (
    find_version,
    mark_announced,
    pool_head,
    pool_names,
    pool_tasks,
    pool_versions,
    publish_rows,
    unannounced,
)


def _questions(store: Store, file: str = "tasks.parquet") -> list[str]:
    return sorted(task.question for task in pool_tasks(store, pool_head(store, "default"), file))


def test_a_version_holds_all_rows_and_knows_what_it_added(tmp_path: Path) -> None:
    store = local(tmp_path)
    first, second = add(store, "A?", "B?"), add(store, "B?", "C?")
    assert (second.head.version, second.is_new, second.admission.duplicates) == (2, True, 1)
    assert _questions(store) == ["A?", "B?", "C?"]
    assert _questions(store, ADDED_FILE) == ["C?"]
    about = json.loads((store.open(second.head.ref).path / "pool.json").read_text())
    assert (about["pool"], about["version"], about["parent"]) == ("default", 2, first.head.ref.digest)
    assert (about["tasks"], about["added"]) == (3, 1)
    assert store.manifest(second.head.ref).parents == {"parent": first.head.ref}
    assert pool_versions(store, "default") == [first.head, second.head]


def test_nothing_new_publishes_nothing(tmp_path: Path) -> None:
    store = local(tmp_path)
    first = add(store, "A?", "B?")
    again = add(store, "b ?", "A?")
    assert (again.head, again.is_new, again.admission.duplicates) == (first.head, False, 2)
    assert len(store.ls(ArtifactKind.TASKS)) == 1


def test_the_digest_follows_from_the_content(tmp_path: Path) -> None:
    digests = {add(local(tmp_path / place), "A?", "B?").head.ref.digest for place in ("one", "two")}
    assert len(digests) == 1
    assert add(local(tmp_path / "three"), "A?", "B?", pool="other").head.ref.digest not in digests


def test_writers_at_once_all_get_their_rows_in(tmp_path: Path) -> None:
    """Each reads the head before any of them has published: all but one of them lose a race and merge again."""
    store, count = local(tmp_path), 4
    gate, seen = threading.Barrier(count), threading.local()

    def all_at_once(tasks):
        if not getattr(seen, "once", False):
            seen.once = True
            gate.wait()
        return known_with(tasks)

    def write(number: int) -> None:
        scratch = tmp_path / f"scratch{number}"
        publish_rows(store, "default", rows(f"Q{number}?", "Shared?"), all_at_once, SHARES, scratch)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _questions(store) == [*(f"Q{number}?" for number in range(count)), "Shared?"]
    assert [one.version for one in pool_versions(store, "default")] == [1, 2, 3, 4]


def test_a_writer_killed_at_any_step_leaves_a_pool_that_the_next_one_completes(tmp_path: Path, monkeypatch) -> None:
    expected = None
    for steps in range(100):
        store = local(tmp_path / str(steps))
        add(store, "A?")
        honest = store.backend
        store.backend = DyingBackend(honest, steps)
        with monkeypatch.context() as patched:
            patched.setattr("afm_core.store.attempt.this_process", killed_process)
            try:
                add(store, "B?", "C?")
                done = True
            except Killed:
                done = False
        store.backend = honest
        assert _questions(store) in (["A?"], ["A?", "B?", "C?"])
        digest = add(store, "B?", "C?").head.ref.digest
        assert digest == (expected := expected or digest)
        assert pool_head(store, "default").version == 2
        if done:
            break
    assert steps > 4


def test_a_version_is_unannounced_until_it_is_marked(tmp_path: Path) -> None:
    store = local(tmp_path)
    heads = [add(store, question).head for question in ("A?", "B?")]
    assert unannounced(store, "default") == heads
    mark_announced(store, heads[0])
    mark_announced(store, heads[0])
    assert unannounced(store, "default") == heads[1:]


def test_versions_are_found_by_number_and_absent_ones_are_the_users_mistake(tmp_path: Path) -> None:
    store = local(tmp_path)
    with pytest.raises(ConfigError, match=r"no task pool 'default'.*none yet"):
        find_version(store, "default")
    heads = [add(store, question).head for question in ("A?", "B?")]
    assert [find_version(store, "default", number) for number in (1, 2, None)] == [*heads, heads[1]]
    with pytest.raises(ConfigError, match="has no version 3; it has 1 to 2"):
        find_version(store, "default", 3)
    assert pool_names(store) == ["default"]


@pytest.mark.parametrize("name", ["", "Default", "a/b", "../x", "-a", "a" * 64])
def test_an_unusable_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="a pool cannot be named"):
        add(local(tmp_path), "A?", pool=name)
