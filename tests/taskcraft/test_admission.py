"""Which rows a pool takes: splits by entity group, duplicates, leaks, paths that cannot be walked."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.config import SplitShares
from afm_core.data import AgentTask, Document, Operation, SolutionStep, Split
from afm_core.taskcraft import Admission, GoodRow, Known, Selection, admit, dealt, normal_question

SHARES = SplitShares()
groups = st.text("abcdef", min_size=1, max_size=3)
rows_of_one_world = st.lists(
    st.builds(
        lambda number, group: _row(f"Question {number}?", str(number), component=f"{group}{number % 5}"),
        st.integers(0, 30),
        st.just("c"),
    ),
    max_size=20,
)


def _row(question: str, answer: str, given_split: Split | None = None, **fields: object) -> GoodRow:
    task = AgentTask.create(question, (answer,), split=given_split or Split.TRAIN, **fields)
    return GoodRow(1, task, given_split is not None, {"question": question})


def _admit(rows: list[GoodRow], tasks: list[AgentTask] = [], **known: object) -> Admission:  # noqa: B006
    return admit(rows, Known.build([], tasks, known.get("benchmarks", {})), SHARES)


def _reason(admission: Admission) -> str:
    (bad,) = admission.rejected
    return bad.reason.partition(" ")[0]


@given(groups, groups)
def test_a_group_has_one_split_whatever_else_there_is(group: str, other: str) -> None:
    alone = _admit([_row("Who?", "Ada", component=group)]).added
    together = _admit([_row("What?", "It", component=other), _row("Who?", "Ada", component=group)]).added
    assert alone[0].split is together[1].split is dealt(group, SHARES)


@given(rows_of_one_world, rows_of_one_world)
def test_merging_commutes_and_repeats_add_nothing(first: list[GoodRow], second: list[GoodRow]) -> None:
    there, back = _admit([*first, *second]), _admit([*second, *first])
    assert {task.id: task for task in there.added} == {task.id: task for task in back.added}
    again = _admit([*first, *second], there.added)
    assert (again.added, again.duplicates) == ([], len(first) + len(second))


@given(rows_of_one_world)
def test_every_row_is_added_known_or_rejected(rows: list[GoodRow]) -> None:
    assert _admit(rows).rows == len(rows)


def test_the_shares_are_kept_over_many_groups() -> None:
    counts = Counter(dealt(f"country-{number}", SHARES) for number in range(4000))
    for split in Split:
        assert counts[split] / 4000 == pytest.approx(getattr(SHARES, split), abs=0.02)


def test_a_group_follows_its_home_in_the_profiles_tasks() -> None:
    home = AgentTask.create("Old?", ("1",), component="c", split=Split.GATE)
    assert _admit([_row("New?", "2", component="c")], [home]).added[0].split is Split.GATE


@pytest.mark.parametrize("split", list(Split))
def test_a_row_keeps_the_split_that_it_names(split: Split) -> None:
    assert _admit([_row("New?", "2", split, component="fresh")]).added[0].split is split


def test_a_row_that_names_another_split_than_its_entities_have_leaks() -> None:
    home = AgentTask.create("Old?", ("1",), component="c", split=Split.TEST)
    assert _reason(_admit([_row("New?", "2", Split.TRAIN, component="c")], [home])) == "leak:entities"


@pytest.mark.parametrize("split", [Split.DEV, Split.GATE, Split.TEST])
@pytest.mark.parametrize("question", ["Who is it?", "  who IS it ", "Who is ít?"])
def test_a_training_row_with_a_held_out_question_leaks(split: Split, question: str) -> None:
    held_out = AgentTask.create("Who is it?", ("Ada",), split=split)
    admission = _admit([_row(question, "Ada", Split.TRAIN)], [held_out])
    assert _reason(admission) == f"leak:{split}"
    assert held_out.id in admission.rejected[0].reason


def test_a_training_row_of_a_benchmark_leaks_and_a_test_row_does_not() -> None:
    benchmarks = {"What is 2 + 2?": "sums"}
    assert _reason(_admit([_row("what is 2 + 2", "4", Split.TRAIN)], benchmarks=benchmarks)) == "leak:benchmark"
    assert len(_admit([_row("what is 2 + 2", "4", Split.TEST)], benchmarks=benchmarks).added) == 1


def test_the_same_question_in_other_letters_is_a_duplicate_and_other_signs_are_not() -> None:
    assert _admit([_row("Wo liegt Zürich?", "CH"), _row("wo liegt  zurich", "Schweiz")]).duplicates == 1
    assert len(_admit([_row("2 + 2?", "4"), _row("2 - 2?", "0")]).added) == 2
    assert normal_question("???") == "???"


def test_generated_tasks_keep_their_splits_and_are_known_the_second_time(
    micro: list[Document], micro_tasks: Selection
) -> None:
    rows = [GoodRow(number, task, True, None) for number, task in enumerate(micro_tasks.tasks)]
    known = Known.build(micro, [], {})
    assert admit(rows, known, SHARES).added == micro_tasks.tasks
    undecided = [GoodRow(row.row, row.task, False, None) for row in rows]
    assert admit(undecided, Known.build(micro, micro_tasks.tasks, {}), SHARES).duplicates == len(rows)


def test_evidence_of_another_corpus_is_rejected(micro_tasks: Selection) -> None:
    assert _reason(_admit([GoodRow(1, micro_tasks.tasks[0], True, None)])) == "evidence"


def _step(operation: Operation = Operation.LOOKUP, inputs: tuple[int, ...] = (), **fields: str) -> SolutionStep:
    return SolutionStep(operation=operation, relation="r", inputs=inputs, **{"subject": "s", "value": "v", **fields})


@pytest.mark.parametrize(
    "solution",
    [
        (_step(inputs=(0,)),),
        (_step(inputs=(1,)), _step()),
        (_step(), _step(Operation.LARGER, (0,))),
        (_step(), _step(), _step(Operation.SMALLER, (0, 1)), _step(inputs=(2,))),
        (_step(subject=" "),),
        (_step(value=""),),
        (_step(), _step(), _step(inputs=(0, 1))),
    ],
)
def test_a_path_that_cannot_be_walked_is_rejected_not_taught(solution: tuple[SolutionStep, ...]) -> None:
    assert _reason(_admit([_row("Who?", "v", solution=solution)])) == "solution"
