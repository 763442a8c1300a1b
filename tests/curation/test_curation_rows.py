"""Every reason has a row that is rejected for it, and for it alone."""

import pytest
from curation_samples import chain_of, closing, look_up, reflecting, seen, task_of, teacher, trajectory_of

from afm_core.config import CurationConfig
from afm_core.curation import LeakIndex, RejectReason, curate_rows, interactions, judge_row
from afm_core.data import (
    Operation,
    SolutionStep,
    Split,
    Status,
    Tag,
    Verifier,
    VerifierKind,
    is_guessable,
    trajectories_table,
)

TASK = task_of("Mombasa", "Kenya")
HELD_OUT = chain_of("Lima", "Peru", "Sol", split=Split.TEST)


def reason_of(trajectory, *tasks, **config):
    """The single row's reason, None if it is kept."""
    kept, decision = curate_rows([trajectory], [TASK, HELD_OUT, *tasks], CurationConfig.model_validate(config))
    assert len(kept) + len(decision.rejected) == 1
    return decision.rejected[0].reason if decision.rejected else None


def test_a_right_demonstration_is_kept_as_it_is():
    trajectory = trajectory_of(TASK)
    kept, decision = curate_rows([trajectory], [TASK, HELD_OUT], CurationConfig())
    assert kept == [trajectory]
    assert decision.counts()["in"] == decision.counts()["kept"] == 1


def with_answer(text, **fields):
    return trajectory_of(TASK, [*look_up(TASK), *closing(text)], **fields)


def extra(*segments):
    return [*look_up(TASK), *segments, *closing("Kenya")]


CASES = {
    "a task nobody knows": (trajectory_of(task_of("Bergen", "Norway")), RejectReason.UNKNOWN_TASK),
    "a failed run": (trajectory_of(TASK, status=Status.TRUNCATED), RejectReason.NOT_COMPLETED),
    "no answer": (trajectory_of(TASK, look_up(TASK)), RejectReason.GRAMMAR),
    "no thought": (trajectory_of(TASK, look_up(TASK)[1:] + closing("Kenya")), RejectReason.GRAMMAR),
    "a wrong answer": (with_answer("Mombasa"), RejectReason.WRONG_ANSWER),
    "a reward that lies": (with_answer("Mombasa", reward=1.0, answer="Mombasa"), RejectReason.WRONG_ANSWER),
    "an answer that is not in the text": (with_answer("Mombasa", answer="Kenya"), RejectReason.WRONG_ANSWER),
    "one call twice": (trajectory_of(TASK, [*look_up(TASK), *extra()]), RejectReason.REDUNDANT_CALL),
    "one call twice in other letters": (
        trajectory_of(TASK, extra(teacher(Tag.THINK, "More."), teacher(Tag.WEB_SEARCH, "mombasa  COUNTRY"), seen("."))),
        RejectReason.REDUNDANT_CALL,
    ),
    "knowledge from nowhere": (
        trajectory_of(TASK, [teacher(Tag.THINK, "It is Kenya."), *look_up(TASK)[1:], *closing("Kenya")]),
        RejectReason.CLAIRVOYANT,
    ),
    "a held-out city in a thought": (
        trajectory_of(TASK, extra(teacher(Tag.THINK, "As in Lima."))),
        RejectReason.LEAK_ENTITY,
    ),
    "a held-out country in an observation": (
        trajectory_of(TASK, extra(teacher(Tag.THINK, "More."), teacher(Tag.WEB_SEARCH, "x"), seen("in peru"))),
        RejectReason.LEAK_ENTITY,
    ),
}


def test_a_team_may_guess_what_the_solution_teacher_may_not_say_unseen():
    guess = CASES["knowledge from nowhere"][0]
    assert reason_of(guess.model_copy(update={"source": "team:some-model"})) is None


@pytest.mark.parametrize("name", CASES)
def test_each_fault_has_its_reason(name):
    trajectory, reason = CASES[name]
    assert reason_of(trajectory) == reason


def test_a_task_of_another_split_is_a_leak():
    dev = task_of("Oslo", "Norway", split=Split.DEV)
    assert reason_of(trajectory_of(dev), dev) == RejectReason.LEAK_SPLIT


def test_a_component_with_held_out_tasks_is_a_leak():
    train = task_of("Cusco", "Peru")
    assert reason_of(trajectory_of(train), train) == RejectReason.LEAK_COMPONENT


def test_an_answer_that_cannot_be_scored_is_not_called_wrong():
    judged = TASK.model_copy(update={"verifier": Verifier(kind=VerifierKind.JUDGE)})
    judged = type(TASK).create(TASK.question, TASK.answers, judged.verifier, solution=TASK.solution)
    assert reason_of(trajectory_of(judged), judged) == RejectReason.UNSCORED


def test_complexity_counts_activations_of_agents_and_tools():
    trajectory = trajectory_of(TASK)
    assert interactions(trajectory) == 4  # think, search, think, double check
    assert reason_of(trajectory, minimum_interactions=4) is None
    assert reason_of(trajectory, minimum_interactions=5) == RejectReason.TOO_SIMPLE


def test_a_row_that_is_no_trajectory_is_counted_not_raised():
    row = trajectories_table([trajectory_of(TASK)]).to_pylist()[0]
    for broken in ({**row, "status": "fine"}, {**row, "segments": []}, {**row, "provenance": "{"}):
        facts = judge_row(broken, {TASK.id: TASK}, LeakIndex(), CurationConfig())
        assert facts.reason == RejectReason.UNREADABLE
        assert facts.id == row["id"]


def test_the_reflection_policy_spares_those_that_reflect():
    assert reason_of(trajectory_of(TASK), without_reflection_share=0.0) == RejectReason.WITHOUT_REFLECTION
    assert reason_of(reflecting(TASK), without_reflection_share=0.0) is None


def test_corrections_are_copied_and_counted_apart():
    doubted = chain_of("Mombasa", "Kenya", "Shilling")
    segments = [
        *look_up(task_of("Mombasa", "Kenya")),
        *closing("Kenya", score=2),
        teacher(Tag.PLAN, "Kenya: currency"),
        teacher(Tag.WEB_SEARCH, "Kenya currency"),
        seen("Kenya: has the currency Shilling."),
        *closing("Shilling"),
    ]
    rows = [trajectory_of(TASK), reflecting(TASK), trajectory_of(doubted, segments)]
    kept, decision = curate_rows(
        rows, [TASK, HELD_OUT, doubted], CurationConfig(correction_copies=3, guessable_share=1)
    )
    counts = decision.counts()
    assert (counts["in"], counts["kept"], counts["copies"], counts["written"]) == (3, 3, 4, 7)
    assert len({one.id for one in kept}) == len(kept) == 7
    copied = [one for one in kept if "copy_of" in one.provenance]
    assert {one.provenance["copy_of"] for one in copied} == {rows[1].id, rows[2].id}


def test_guessable_answers_are_comparisons_and_small_sets():
    compare = SolutionStep(operation=Operation.LARGER, relation="area", subject="", value="Kenya", inputs=(0, 1))
    assert is_guessable(task_of("Kenya", "Africa", relation="continent"))
    assert is_guessable(TASK.model_copy(update={"solution": (*TASK.solution, compare)}))
    assert not is_guessable(TASK)
