"""The checks of one row: pure functions of a trajectory, its task and the leak index. No row knows another
here."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from afm_core.coa import check_trajectory, double_check_score, elements_of, render_trajectory
from afm_core.config import CurationConfig
from afm_core.curation.leaks import LeakIndex
from afm_core.curation.reasons import RejectReason
from afm_core.data import TOOL_TAGS, AgentTask, Split, Status, Tag, Trajectory, is_guessable
from afm_core.rewards import score
from afm_core.teacher import TEAM_SOURCE, check_clairvoyance
from afm_core.tools import fold

INTERACTIONS = TOOL_TAGS | {Tag.THINK, Tag.PLAN, Tag.REFLECTION, Tag.DOUBLE_CHECK}
"""What counts as an activation of an agent or a tool; observations and (suggested) answers are outputs."""

LOW_SCORE = 2


@dataclass(frozen=True)
class RowFacts:
    """What is known of one row after its own checks. `digest` names the row's whole content.

    text_key: hash of question and text, normalised (equal: duplicates). reflects: has a reflection, or a
    double check that scored low; corrected: such a double check, or a marked mistake with a reflection, and a
    right answer after.
    """

    id: str
    digest: str
    reason: RejectReason | None = None
    detail: str = ""
    text_key: str = ""
    reflects: bool = False
    corrected: bool = False
    guessable: bool = False


def row_digest(row: Mapping[str, Any]) -> str:
    """Content hash of a table row."""
    return hashlib.sha256(json.dumps(row, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def judge_row(
    row: Mapping[str, Any], tasks: Mapping[str, AgentTask], leaks: LeakIndex, config: CurationConfig
) -> RowFacts:
    """Judge one row of a trajectories table; a row that is no trajectory is rejected, not raised."""
    digest = row_digest(row)
    try:
        provenance = json.loads(row.get("provenance") or "{}")
        trajectory = Trajectory.model_validate({**row, "provenance": provenance})
    except (ValidationError, ValueError, TypeError) as error:
        detail = str(error).splitlines()[0]
        return RowFacts(str(row.get("id")), digest, RejectReason.UNREADABLE, detail)
    return judge(trajectory, digest, tasks, leaks, config)


def judge(
    trajectory: Trajectory,
    digest: str,
    tasks: Mapping[str, AgentTask],
    leaks: LeakIndex,
    config: CurationConfig,
) -> RowFacts:
    """Judge one trajectory by the checks of one row, in the decision order."""
    task = tasks.get(trajectory.task_id)
    if task is None:
        return RowFacts(trajectory.id, digest, RejectReason.UNKNOWN_TASK, trajectory.task_id)
    checks: tuple[tuple[RejectReason, Callable[[], str | None]], ...] = (
        (RejectReason.LEAK_SPLIT, lambda: None if task.split == Split.TRAIN else task.split.value),
        (RejectReason.LEAK_COMPONENT, lambda: task.component if task.component in leaks.components else None),
        (RejectReason.LEAK_QUESTION, lambda: _leaked_question(trajectory, task, leaks)),
        (RejectReason.LEAK_ENTITY, lambda: _leaked_entity(trajectory, leaks)),
        (RejectReason.NOT_COMPLETED, lambda: _not_completed(trajectory)),
        (RejectReason.GRAMMAR, lambda: _violation(trajectory)),
    )
    found = _first(checks) or _answer_problem(trajectory, task) or _first(_quality(trajectory, task, config))
    if found is not None:
        return RowFacts(trajectory.id, digest, found[0], found[1])
    doubted = _low_double_check(trajectory)
    reflects = doubted or any(element.tag == Tag.REFLECTION for element in elements_of(trajectory))
    return RowFacts(
        id=trajectory.id,
        digest=digest,
        text_key=text_key(trajectory),
        reflects=reflects,
        corrected=doubted or (reflects and any(segment.mistake for segment in trajectory.segments)),
        guessable=is_guessable(task),
    )


def text_key(trajectory: Trajectory) -> str:
    """Hash of question and rendered text, case, accents and white space aside."""
    text = f"{fold(trajectory.question)}\n{fold(render_trajectory(trajectory))}"
    return hashlib.sha256(text.encode()).hexdigest()


def interactions(trajectory: Trajectory) -> int:
    """Activations of agents and tools (one call is one hop, as the paper counts)."""
    return sum(element.tag in INTERACTIONS for element in elements_of(trajectory))


def _first(
    checks: tuple[tuple[RejectReason, Callable[[], str | None]], ...],
) -> tuple[RejectReason, str] | None:
    for reason, check in checks:
        detail = check()
        if detail is not None:
            return reason, detail
    return None


def _quality(
    trajectory: Trajectory, task: AgentTask, config: CurationConfig
) -> tuple[tuple[RejectReason, Callable[[], str | None]], ...]:
    return (
        (RejectReason.TOO_SIMPLE, lambda: _too_simple(trajectory, config.minimum_interactions)),
        (RejectReason.REDUNDANT_CALL, lambda: _redundant_call(trajectory)),
        (RejectReason.CLAIRVOYANT, lambda: _clairvoyant(trajectory, task)),
    )


def _clairvoyant(trajectory: Trajectory, task: AgentTask) -> str | None:
    """What a teacher said unseen. A team of language models knows no solution: what it says unseen is its guess."""
    if trajectory.source.startswith(TEAM_SOURCE):
        return None
    return next(iter(check_clairvoyance(trajectory, task)), None)


def _leaked_question(trajectory: Trajectory, task: AgentTask, leaks: LeakIndex) -> str | None:
    similar = leaks.similar_question(trajectory.question) or leaks.similar_question(task.question)
    return f"like the question of task {similar}" if similar else None


def _leaked_entity(trajectory: Trajectory, leaks: LeakIndex) -> str | None:
    texts = [trajectory.question, trajectory.answer or "", *(segment.text for segment in trajectory.segments)]
    return next((name for text in texts if (name := leaks.named_entity(text)) is not None), None)


def _not_completed(trajectory: Trajectory) -> str | None:
    return None if trajectory.status == Status.COMPLETED else trajectory.status.value


def _violation(trajectory: Trajectory) -> str | None:
    try:
        violations = check_trajectory(trajectory)
    except ValueError as error:
        return str(error)
    return next((f"{one.code} in segment {one.segment}" for one in violations), None)


def _answer_problem(trajectory: Trajectory, task: AgentTask) -> tuple[RejectReason, str] | None:
    """The answer is scored again here: nobody's word is taken for it, and it must be the one in the text."""
    answers = [element.text for element in elements_of(trajectory) if element.tag == Tag.ANSWER]
    answer = trajectory.answer or ""
    if not answers or answers[-1].strip() != answer.strip():
        return RejectReason.WRONG_ANSWER, "the answer is not the one in the text"
    result = score(task, answer)
    if result.value is None:
        return RejectReason.UNSCORED, result.reason
    return None if result.value >= 1.0 else (RejectReason.WRONG_ANSWER, result.reason)


def _too_simple(trajectory: Trajectory, minimum: int) -> str | None:
    count = interactions(trajectory)
    return f"{count} interactions" if count < minimum else None


def _redundant_call(trajectory: Trajectory) -> str | None:
    calls = Counter((one.tag, fold(one.text)) for one in elements_of(trajectory) if one.tag in TOOL_TAGS)
    return next((f"{tag} {text!r}" for (tag, text), count in calls.items() if count > 1), None)


def _low_double_check(trajectory: Trajectory) -> bool:
    """True if a double check scored low: the right answer at the end is then a correction."""
    checks = [element for element in elements_of(trajectory) if element.tag == Tag.DOUBLE_CHECK]
    return any((double_check_score(check.text) or LOW_SCORE + 1) <= LOW_SCORE for check in checks)
