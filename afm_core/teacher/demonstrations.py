"""Many tasks at once: concurrent runs in a fixed order, the components training may see, examples for
few-shot."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from afm_core.config import AgentConfig, TeacherConfig
from afm_core.data import AgentTask, Document, Split, Status, Tag, Trajectory
from afm_core.teacher.convert import convert
from afm_core.teacher.events import MistakeKind, Recording
from afm_core.teacher.system import demonstrate
from afm_core.tools.protocol import Tool


def demonstrate_all(
    tasks: Sequence[AgentTask], tools: Mapping[Tag, Tool], teacher: TeacherConfig, agent: AgentConfig
) -> list[Recording]:
    """Run the teacher on the tasks, `teacher.concurrency` at a time; recordings in the order of the tasks."""
    with ThreadPoolExecutor(teacher.concurrency, thread_name_prefix="teacher") as pool:
        return list(pool.map(lambda task: demonstrate(task, tools, teacher, agent), tasks))


def teacher_ceiling(
    tasks: Sequence[AgentTask], tools: Mapping[Tag, Tool], teacher: TeacherConfig, agent: AgentConfig
) -> list[Trajectory]:
    """Scored trajectories of the teacher without mistakes on tasks of any split: what the tools allow at
    best.

    In the order of the tasks; a task without a solution path, or one where nothing could be recorded, is left
    out.
    """
    flawless = teacher.model_copy(update={"mistake_rate": 0.0})
    solvable = [task for task in tasks if task.solution]
    recordings = demonstrate_all(solvable, tools, flawless, agent)
    pairs = zip(solvable, recordings, strict=True)
    return [convert(recording, task) for task, recording in pairs if recording.events]


def training_components(documents: Iterable[Document], tasks: Iterable[AgentTask]) -> frozenset[str]:
    """The components whose documents may be seen in training: those that no dev, gate or test task
    touches."""
    documents = list(documents)
    return frozenset(document.component for document in documents) - held_out_components(documents, tasks)


def held_out_components(documents: Iterable[Document], tasks: Iterable[AgentTask]) -> frozenset[str]:
    """Components that a dev, gate or test task touches, by its own component or by a document it rests on."""
    component_of = {document.id: document.component for document in documents}
    return frozenset(
        component
        for task in tasks
        if task.split != Split.TRAIN
        for component in (
            task.component,
            *(component_of.get(evidence.document_id, "") for evidence in task.evidence),
            *(component_of.get(step.document_id or "", "") for step in task.solution),
        )
        if component
    )


def few_shot_examples(trajectories: Iterable[Trajectory], count: int) -> list[Trajectory]:
    """Short, diverse demonstrations without mistakes: the shortest of each number of tool calls, in turn.

    Deterministic for a set of trajectories, whatever their order. Fewer than `count` come back if fewer
    qualify.
    """
    fitting = [
        trajectory
        for trajectory in trajectories
        if trajectory.status == Status.COMPLETED
        and trajectory.reward == 1.0
        and trajectory.provenance.get("mistake", MistakeKind.NONE) == MistakeKind.NONE
        and not any(segment.mistake for segment in trajectory.segments)
    ]
    by_calls: dict[int, list[Trajectory]] = {}
    for trajectory in sorted(fitting, key=lambda one: (_length(one), one.id)):
        by_calls.setdefault(trajectory.usage.tool_calls, []).append(trajectory)
    return sorted(_in_turn(by_calls, count), key=lambda one: (one.usage.tool_calls, _length(one), one.id))


def _in_turn(by_calls: Mapping[int, Sequence[Trajectory]], count: int) -> Iterator[Trajectory]:
    groups = [list(by_calls[calls]) for calls in sorted(by_calls)]
    taken: set[str] = set()
    while count > len(taken) and any(groups):
        for group in groups:
            if group and len(taken) < count:
                chosen = group.pop(0)
                taken.add(chosen.id)
                yield chosen


def _length(trajectory: Trajectory) -> int:
    return sum(len(segment.text) for segment in trajectory.segments)
