"""Which tasks of a split are evaluated: a deterministic sample that keeps the shares of hops and is nested.

Stratified systematic sampling: inside a stratum tasks are ordered by a hash of seed and id, and the j-th of n
tasks gets the place (j + 1/2) / n; a sample is the tasks with the first places (Webster's divisor rule, which
is house-monotone). So a sample of 60 is a subset of the sample of 360, and models with different limits are
compared on common tasks.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence

from afm_core.data import AgentTask


def stratified_sample(tasks: Sequence[AgentTask], limit: int | None, seed: int) -> list[AgentTask]:
    """At most `limit` tasks, hops represented in proportion, sorted by id. None: all tasks."""
    strata: dict[int, list[AgentTask]] = defaultdict(list)
    for task in tasks:
        strata[task.difficulty.hops].append(task)
    placed: list[tuple[float, int, AgentTask]] = []
    for hops, members in strata.items():
        members.sort(key=lambda task: _order(task.id, seed))
        placed.extend(((index + 0.5) / len(members), hops, task) for index, task in enumerate(members))
    placed.sort(key=lambda entry: entry[:2])
    chosen = [task for _, _, task in placed[: len(placed) if limit is None else limit]]
    return sorted(chosen, key=lambda task: task.id)


def task_set_digest(tasks: Sequence[str]) -> str:
    """SHA-256 (16 hex digits) of a set of task ids: equal digests mean a paired comparison is possible."""
    return hashlib.sha256("\n".join(sorted(tasks)).encode()).hexdigest()[:16]


def _order(identifier: str, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{identifier}".encode()).hexdigest()
