"""From an ended episode or demonstration to a scored trajectory: violations, reward, verdict.

A failure of the policy is wrong (reward 0); a failure of anything else is unscored (reward None), never 0.
"""

from afm_core.coa import check_trajectory
from afm_core.data import POLICY_FAILURES, AgentTask, Status, Trajectory, Verdict, VerifierKind
from afm_core.rewards.score import Score, score


def scored(trajectory: Trajectory, task: AgentTask, check: bool = True) -> Trajectory:
    """The trajectory with its violations (if `check`), reward and verdict filled in."""
    violations = tuple(violation.code.value for violation in check_trajectory(trajectory)) if check else ()
    update: dict[str, object] = {"violations": violations}
    if trajectory.status in POLICY_FAILURES:
        update["reward"] = 0.0
    elif trajectory.status is Status.COMPLETED:
        result = _graded(task, trajectory.answer)
        update["reward"] = result.value
        update["verdicts"] = (Verdict(checker=task.verifier.kind.value, score=result.value, reason=result.reason),)
        if result.value is None:
            judged = task.verifier.kind is VerifierKind.JUDGE
            update["status"] = Status.JUDGE_ERROR if judged else Status.GRADER_ERROR
    return trajectory.model_copy(update=update)


def _graded(task: AgentTask, answer: str | None) -> Score:
    try:
        return score(task, answer)
    except Exception as error:  # noqa: BLE001 - recorded: the trajectory becomes grader_error, unscored
        return Score(None, f"the grader failed: {type(error).__name__}: {error}")
