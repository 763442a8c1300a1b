"""The stage `pool`: a profile's tasks and a version of a task pool as one task set, with what is new in it.

Rows were held against the tasks of the profile that they were added under. This profile may be another one, so they
are judged once more here; what does not fit is left out and counted by reason.
"""

import json
from collections import Counter
from collections.abc import Collection
from typing import Any

from afm_core.config import SplitShares
from afm_core.data import AgentTask, NewTasks, Split, documents_from_table, tasks_from_table, tasks_table
from afm_core.store import Artifact, StageContext, StageResult, read_table, write_table
from afm_core.taskcraft.admission import Admission, Known, admit
from afm_core.taskcraft.pool import POOL_FILE, TASKS_FILE
from afm_core.taskcraft.rows import GoodRow


def join_pool(context: StageContext) -> StageResult:
    """Stage `pool`. Inputs: corpus, tasks, `pool` (a version) and `known` (an older one; optional).

    Writes tasks.parquet (all tasks, all splits) and new.json (see NewTasks). New are the tasks of `pool` that `known`
    has not: what the champion has not been trained for. Metrics count new tasks by split, those without a solution
    path (which no demonstration can be made of; they serve RL and evaluation) and what was left out, by reason.
    """
    inputs = context.inputs
    documents = documents_from_table(read_table(inputs["corpus"].path / "documents.parquet"))
    base = _tasks(inputs["tasks"])
    pool = _tasks(inputs["pool"])
    joined = join(Known.build(documents, base, {}), pool)
    old = {task.id for task in _tasks(inputs["known"])} if "known" in inputs else set()
    new = sorted(task.id for task in joined.added if task.id not in old)
    rows = write_table(tasks_table([*base, *joined.added]), context.output / TASKS_FILE)
    about, known = _about(inputs["pool"]), _about(inputs["known"])["version"] if "known" in inputs else 0
    NewTasks(pool=about["pool"], version=about["version"], known=known, tasks=tuple(new)).write(context.output)
    return StageResult(metrics=_metrics(joined, set(new)), rows={TASKS_FILE: rows})


def join(known: Known, pool: Collection[AgentTask]) -> Admission:
    """The tasks of a pool that go with a profile's tasks; every one keeps the split that it was published with."""
    rows = [GoodRow(number, task, split_given=True, original=task.id) for number, task in enumerate(pool, start=1)]
    return admit(rows, known, SplitShares())


def _metrics(joined: Admission, new: set[str]) -> dict[str, int | float | str | bool | None]:
    fresh = [task for task in joined.added if task.id in new]
    by_split = Counter(task.split for task in fresh)
    reasons = Counter(row.reason.partition(" ")[0] for row in joined.rejected)
    untaught = sum(task.split is Split.TRAIN and not task.solution for task in fresh)
    return {
        "pool_tasks": len(joined.added),
        "new": len(fresh),
        **{f"new/{split}": by_split[split] for split in Split},
        "new/train_without_solution": untaught,
        "left_out/known": joined.duplicates,
        **{f"left_out/{reason.replace(':', '_')}": count for reason, count in sorted(reasons.items())},
    }


def _about(version: Artifact) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((version.path / POOL_FILE).read_text(encoding="utf-8"))
    return values


def _tasks(artifact: Artifact) -> list[AgentTask]:
    return tasks_from_table(read_table(artifact.path / TASKS_FILE))
