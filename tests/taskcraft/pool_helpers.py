"""What the tests of pools share: rows, a store whose process can be killed at any step, a pool without a profile."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from afm_core.config import SplitShares
from afm_core.data import AgentTask
from afm_core.store import Store, Timing, open_store
from afm_core.store.lease import this_process
from afm_core.taskcraft import GoodRow, Known, Published, publish_rows

FAST = Timing(heartbeat=0.02, dead_after=15.0, poll=0.01)
SHARES = SplitShares()
MUTATIONS = ("create", "write", "put", "delete")


class Killed(BaseException):
    """A SIGKILL, for a test that stays alive."""


class DyingBackend:
    """Another backend whose calls raise Killed once `steps` changes were made: the next one finds a dead process."""

    def __init__(self, backend: Any, steps: int) -> None:
        self._backend = backend
        self.steps = steps

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._backend, name)
        if name not in MUTATIONS:
            return function

        def change(*arguments: Any, **named: Any) -> Any:
            if not any(str(one).endswith("heartbeat") for one in arguments):
                if self.steps == 0:
                    raise Killed
                self.steps -= 1
            return function(*arguments, **named)

        return change


def local(root: Path) -> Store:
    return open_store(str(root / "store"), root / "cache", FAST)


def killed_process() -> Any:
    """Looks like an attempt of this machine whose process is gone."""
    return replace(this_process(), pid=4_000_000, started="0")


def known_with(tasks: Sequence[AgentTask]) -> Known:
    return Known().with_tasks(tasks, "the pool")


def rows(*questions: str, **fields: Any) -> list[GoodRow]:
    tasks = [AgentTask.create(question, ("yes",), **fields) for question in questions]
    return [GoodRow(number, task, False, task.question) for number, task in enumerate(tasks, start=1)]


def add(store: Store, *questions: str, pool: str = "default") -> Published:
    scratch = store.cache / "scratch"
    return publish_rows(store, pool, rows(*questions), known_with, SHARES, scratch)


def drop(store: Store, name: str, *questions: str, extra: bytes = b"") -> None:
    """A file into incoming/, as a user of the bucket would put it."""
    lines = [json.dumps({"question": question, "answer": "yes"}).encode() for question in questions]
    store.backend.write(f"incoming/{name}", b"\n".join([*lines, extra]))
