"""The reward of one answer. A grader that cannot judge gives None and says why; it never gives 0 for that."""

from dataclasses import dataclass

from afm_core.data import AgentTask, VerifierKind
from afm_core.rewards.normalize import same


@dataclass(frozen=True)
class Score:
    """value in [0, 1], or None when the answer could not be judged; reason is for people and counts."""

    value: float | None
    reason: str


def score(task: AgentTask, answer: str | None) -> Score:
    """Score an answer by the task's verifier: deterministic, and total on any answer.

    exact_match: 1 if the answer is the same as any acceptable one (see afm_core.rewards.normalize), else 0. Other
    verifiers are not supported yet and give None.
    """
    if task.verifier.kind != VerifierKind.EXACT_MATCH:
        return Score(None, f"unsupported verifier {task.verifier.kind.value!r}: only exact_match can be scored")
    if answer is None or not answer.strip():
        return Score(0.0, "no answer")
    if any(same(accepted, answer) for accepted in task.answers):
        return Score(1.0, "match")
    return Score(0.0, "no match")
