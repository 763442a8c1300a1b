"""Task pools and incoming files in a bucket: the same as in a directory, with two polls at once."""

import json
import threading

import pytest

from afm_core.config import ConfigError, SplitShares
from afm_core.data import AgentTask
from afm_core.store import Store
from afm_core.taskcraft import (
    GoodRow,
    Known,
    Published,
    mark_announced,
    poll_once,
    pool_head,
    pool_tasks,
    pool_versions,
    publish_rows,
    unannounced,
)


def _known(tasks: list[AgentTask]) -> Known:
    return Known().with_tasks(tasks, "the pool")


def _questions(store: Store) -> list[str]:
    return sorted(task.question for task in pool_tasks(store, pool_head(store, "default")))


def _at_once(*works) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_two_writers_at_once_and_both_are_in(store: Store) -> None:
    found: list[Published] = []

    def add(question: str) -> None:
        rows = [GoodRow(1, AgentTask.create(question, ("yes",)), False, None)]
        scratch = store.cache / f"scratch-{question[0]}"
        found.append(publish_rows(store, "default", rows, _known, SplitShares(), scratch))

    _at_once(lambda: add("A?"), lambda: add("B?"))
    assert _questions(store) == ["A?", "B?"]
    assert sorted(one.head.version for one in found) == [1, 2]
    assert unannounced(store, "default") == pool_versions(store, "default")
    mark_announced(store, pool_versions(store, "default")[0])
    assert [one.version for one in unannounced(store, "default")] == [2]


@pytest.mark.parametrize("files", [3])
def test_two_polls_at_once_take_every_file_in_once(store: Store, files: int) -> None:
    for number in range(files):
        line = json.dumps({"question": f"Q{number}?", "answer": "yes"})
        store.backend.write(f"incoming/{number}.jsonl", f"{line}\nbad\n".encode())
    counts: list[int] = []

    def poll(name: str) -> None:
        done = poll_once(store, "default", _known, SplitShares(), store.cache / name, settle_seconds=0)
        counts.extend(len(one.admission.added) for one in done)

    _at_once(lambda: poll("one"), lambda: poll("two"))
    assert _questions(store) == [f"Q{number}?" for number in range(files)]
    assert sum(counts) == files
    assert store.backend.walk("incoming") == {}
    assert len(store.backend.walk("incoming-done")) == len(store.backend.walk("rejected")) == files


@pytest.mark.integration
def test_the_command_adds_a_file_of_a_bucket_to_a_pool_in_the_bucket(s3_environment: str) -> None:
    from click.testing import CliRunner

    from afm_cli.tasks import tasks
    from afm_core.store import s3_file_system

    files = s3_file_system("test")
    files.pipe_file(f"{s3_environment}/new.jsonl", b'{"question": "q", "answer": "a"}\nbad\n')
    where = ("--profile", "smoke", "--set", f"store.uri={s3_environment}/store", "--json")
    result = CliRunner().invoke(tasks, ["add", f"{s3_environment}/new.jsonl", *where])
    document = json.loads(result.stdout)
    assert (result.exit_code, document["added"], document["rejected"], document["version"]) == (0, 1, 1, 1)
    assert files.exists(f"{s3_environment}/store/pools/default/1.json")
    absent = CliRunner().invoke(tasks, ["add", f"{s3_environment}/absent.jsonl", *where])
    assert "absent.jsonl" in str(absent.exception)
    assert isinstance(absent.exception, ConfigError)
