"""The stage `teach`: corpus and tasks in, the teacher's trajectories and events out.

Only the train split is taught, with tools that see no document of a held-out component. Work is done in
shards of tasks in the order of their ids; a finished shard is sealed, so that a killed stage goes on where it
stopped.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from afm_core.config import AgentConfig, TeacherConfig
from afm_core.data import (
    ADDED_FILE,
    AgentTask,
    Split,
    Tag,
    Trajectory,
    documents_from_table,
    tasks_from_table,
    trajectories_table,
)
from afm_core.store import StageContext, StageInterrupted, StageResult, read_table, write_table
from afm_core.teacher.clairvoyance import check_clairvoyance
from afm_core.teacher.convert import convert
from afm_core.teacher.demonstrations import demonstrate_all, training_components
from afm_core.teacher.events import Recording, events_table
from afm_core.tools import build_tools
from afm_core.tools.protocol import Tool

SHARD_SIZE = 32
"""Tasks in a shard."""


def teach(context: StageContext) -> StageResult:
    """Demonstrate every train task that has a solution path; with the input `additions` (a version of a task pool)
    only those that this version added, so that no task is ever demonstrated twice.

    Writes trajectories.parquet (completed and failed ones, scored) and events.parquet. Metrics count tasks,
    statuses, mistakes made and clairvoyance problems.

    Raises:
        StageInterrupted: the stage was told to stop; finished shards are sealed.
    """
    documents = documents_from_table(read_table(context.inputs["corpus"].path / "documents.parquet"))
    tasks = tasks_from_table(read_table(context.inputs["tasks"].path / "tasks.parquet"))
    taught = tasks
    if "additions" in context.inputs:
        pool = context.inputs["additions"].path
        tasks = [*tasks, *tasks_from_table(read_table(pool / "tasks.parquet"))]  # what is held out there is hidden, too
        taught = tasks_from_table(read_table(pool / ADDED_FILE))
    agent = context.section(AgentConfig)
    train = sorted((task for task in taught if task.split == Split.TRAIN), key=lambda task: task.id)
    solvable = [task for task in train if task.solution]
    tools = build_tools(agent, documents, context.scratch / "tools", training_components(documents, tasks))
    recordings = _record(context, solvable, tools, agent)
    by_id = {task.id: task for task in solvable}
    trajectories = [convert(one, by_id[one.task_id]) for one in recordings if one.events]
    events = events_table(recordings)
    write_table(trajectories_table(trajectories), context.output / "trajectories.parquet")
    write_table(events, context.output / "events.parquet")
    return StageResult(
        metrics={
            "tasks": len(train),
            "without_solution": len(train) - len(solvable),
            **summary(recordings, trajectories, by_id),
        },
        rows={"trajectories.parquet": len(trajectories), "events.parquet": events.num_rows},
    )


def summary(
    recordings: Sequence[Recording], trajectories: Sequence[Trajectory], tasks: Mapping[str, AgentTask]
) -> dict[str, float | int]:
    """Counts by status and by mistake made, the share of right answers, and clairvoyance problems."""
    statuses = Counter(f"status/{one.status}" for one in trajectories)
    mistakes = Counter(f"mistake/{one.mistake}" for one in recordings)
    correct = sum(one.reward == 1.0 for one in trajectories)
    problems = sum(len(check_clairvoyance(one, tasks[one.task_id])) for one in trajectories)
    return {
        "trajectories": len(trajectories),
        "nothing_recorded": len(recordings) - len(trajectories),
        "correct": correct,
        "success_rate": correct / len(recordings) if recordings else 0.0,
        "tool_calls": sum(one.usage.tool_calls for one in trajectories),
        "clairvoyance_problems": problems,
        **dict(sorted({**statuses, **mistakes}.items())),
    }


def _record(
    context: StageContext, tasks: Sequence[AgentTask], tools: Mapping[Tag, Tool], agent: AgentConfig
) -> list[Recording]:
    """Recordings of all tasks; shards sealed by an earlier attempt are read back."""
    teacher = context.section(TeacherConfig)
    sealed = context.sealed("shards/")
    recordings: list[Recording] = []
    for start in range(0, len(tasks), SHARD_SIZE):
        name = f"shards/{start // SHARD_SIZE:05d}.jsonl"
        if name in sealed:
            recordings.extend(_read_shard(sealed[name]))
        else:
            if context.stopping.is_set():
                raise StageInterrupted
            shard = demonstrate_all(tasks[start : start + SHARD_SIZE], tools, teacher, agent)
            context.seal(name, _write_shard(shard, context.scratch / Path(name).name))
            recordings.extend(shard)
        context.progress(len(recordings), len(tasks), "tasks demonstrated")
    return recordings


def _write_shard(recordings: Sequence[Recording], path: Path) -> Path:
    path.write_text("".join(f"{one.model_dump_json()}\n" for one in recordings), encoding="utf-8")
    return path


def _read_shard(path: Path) -> list[Recording]:
    return [Recording.model_validate_json(line) for line in path.read_bytes().splitlines()]
