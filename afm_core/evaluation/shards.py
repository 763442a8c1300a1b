"""Sealed shards: episodes are run a shard of tasks at a time, and each finished shard is kept in the work area.

A stage that is killed goes on at the first shard that is not sealed; a shard's content must depend on nothing but its
tasks and the stage's key, so that the digest is the same as without the kill.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from afm_core.data import AgentTask
from afm_core.store import StageContext, StageInterrupted


@dataclass(frozen=True)
class Shard:
    """Some tasks that are put together. `name` is its sealed name (it starts with "shards/"), `label` is for people."""

    name: str
    label: str
    tasks: Sequence[AgentTask]


ShardT = TypeVar("ShardT", bound=Shard)
Advance = Callable[[float], None]
"""Tell how many tasks of a shard are done; shown as progress, nothing else."""


def run_shards(
    context: StageContext, shards: Sequence[ShardT], work: Callable[[ShardT, Path, Advance], None]
) -> dict[str, Path]:
    """shard name -> the directory that `work` filled, now or in an earlier attempt; progress counts tasks.

    Raises StageInterrupted when the stage is told to stop: finished shards are sealed, the running one is dropped,
    since its episodes may have been cut short, which says nothing about the policy.
    """
    sealed = context.sealed("shards/")
    directories: dict[str, Path] = {}
    done, total = 0, sum(len(shard.tasks) for shard in shards)
    for shard in shards:
        directory = sealed.get(shard.name)
        if directory is None:
            if context.stopping.is_set():
                raise StageInterrupted("told to stop between two shards")
            directory = context.scratch / shard.name
            directory.mkdir(parents=True)
            work(shard, directory, _advance(context, done, total, shard.label))
            if context.stopping.is_set():
                raise StageInterrupted("told to stop within a shard")
            context.seal(shard.name, directory)
        directories[shard.name] = directory
        done += len(shard.tasks)
        context.progress(done, total, shard.label)
    return directories


def _advance(context: StageContext, before: int, total: int, label: str) -> Advance:
    return lambda tasks: context.progress(before + int(tasks), total, label)
