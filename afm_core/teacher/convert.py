"""From the recorded events of a multi-agent run to one chain-of-agents trajectory.

Events are linearised in the order of time (arXiv 2508.13167): an event becomes its thought, its element and,
for a tool call, the observation. Every segment keeps the id of its event.
"""

import hashlib
import json
from collections.abc import Sequence

from afm_core.data import AgentTask, Origin, Segment, Status, Tag, Trajectory, Usage, Verdict
from afm_core.rewards import score
from afm_core.teacher.events import SOURCE, Event, Recording


def convert(recording: Recording, task: AgentTask | None = None) -> Trajectory:
    """The trajectory of a recording. With the task, the answer is scored too (else reward None, no verdict).

    `provenance["events"]` is a JSON list of event ids, one a segment (see `segment_events`);
    `provenance["mistake"]` the kind of mistake made; `provenance["failure"]` why the run did not complete. No
    tokenizer is known here, so that only turns and tool calls are counted.

    Raises:
        ValueError: the recording has no events, or is not of the task.
    """
    if task is not None and task.id != recording.task_id:
        raise ValueError(f"recording of task {recording.task_id} converted with task {task.id}")
    pieces = [(segment, event.id) for event in recording.events for segment in _segments(event)]
    if not pieces:
        raise ValueError(f"task {recording.task_id}: nothing was recorded")
    segments = tuple(segment for segment, _ in pieces)
    calls = sum(event.tool is not None for event in recording.events)
    provenance = {"events": json.dumps([event for _, event in pieces]), "mistake": recording.mistake.value}
    if recording.failure:
        provenance["failure"] = recording.failure
    trajectory = Trajectory(
        id=trajectory_id(recording.task_id, recording.grammar, SOURCE, segments),
        task_id=recording.task_id,
        question=recording.question,
        answer=recording.answer,
        grammar=recording.grammar,
        source=SOURCE,
        segments=segments,
        status=recording.status,
        usage=Usage(turns=calls + (recording.answer is not None), tool_calls=calls),
        provenance=provenance,
    )
    return trajectory if task is None else _scored(trajectory, task)


def segment_events(trajectory: Trajectory) -> tuple[str, ...]:
    """The event id of every segment, in order; raises ValueError if the map does not fit the segments."""
    events = tuple(json.loads(trajectory.provenance.get("events", "[]")))
    if len(events) != len(trajectory.segments):
        raise ValueError(f"trajectory {trajectory.id}: {len(events)} events for {len(trajectory.segments)} segments")
    return events


def trajectory_id(task_id: str, grammar: str, source: str, segments: Sequence[Segment]) -> str:
    """Content hash of a trajectory, 16 hex digits of SHA-256 over its task, grammar, source and segments."""
    content = [[s.origin, s.tag, s.text, s.mistake] for s in segments]
    text = json.dumps([task_id, grammar, source, content], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _segments(event: Event) -> list[Segment]:
    parts = [(Origin.TEACHER, event.kind, event.content, event.mistake)]
    if event.thought:
        parts.insert(0, (Origin.TEACHER, Tag.THINK, event.thought, event.mistake))
    if event.observation is not None:
        parts.append((Origin.TOOL, Tag.OBSERVATION, event.observation, False))
    return [Segment(origin=origin, tag=tag, text=text, mistake=mistake) for origin, tag, text, mistake in parts]


def _scored(trajectory: Trajectory, task: AgentTask) -> Trajectory:
    """Reward and verdict of the final answer; an unfinished run is a wrong answer, a tool failure is
    unscored."""
    if trajectory.status == Status.TOOL_ERROR:
        return trajectory
    if trajectory.answer is None:
        return trajectory.model_copy(update={"reward": 0.0})
    result = score(task, trajectory.answer)
    verdict = Verdict(checker=task.verifier.kind, score=result.value, reason=result.reason)
    status = Status.GRADER_ERROR if result.value is None else trajectory.status
    return trajectory.model_copy(update={"reward": result.value, "verdicts": (verdict,), "status": status})
