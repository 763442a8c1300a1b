"""Wilson intervals and summaries: the laws that every published accuracy rests on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afm_core.data import POLICY_FAILURES, SCORING_FAILURES, Status
from afm_core.evaluation.metrics import figures, find_entry, summarise, wilson_interval
from afm_core.evaluation.rows import EvaluationRow, rows_from_table, rows_table


@st.composite
def rows_strategy(draw, minimum=1):
    rows = []
    for number in range(draw(st.integers(minimum, 30))):
        status = draw(st.sampled_from(list(Status)))
        reward = {True: 0.0, False: None}[status in POLICY_FAILURES]
        if status is Status.COMPLETED:
            reward = draw(st.sampled_from([0.0, 0.5, 1.0]))
        rows.append(
            EvaluationRow(
                id=f"agent-test-{number}", task_id=str(number), protocol="agent", split="test",
                hops=draw(st.integers(1, 4)), status=status, reward=reward,
                held_out=draw(st.booleans()), guessable=draw(st.booleans()),
                tool_calls=draw(st.integers(0, 9)), violations=tuple(draw(st.lists(st.sampled_from("ab"),
                max_size=2))),
            )
        )  # fmt: skip
    return rows


@st.composite
def shares(draw):
    n = draw(st.integers(1, 2000))
    return draw(st.integers(0, n)), n


def test_wilson_interval_matches_published_values():
    # Newcombe (1998), Statistics in Medicine 17, table I, method 3: 81/263, 15/148, 0/20, 1/29.
    for (correct, n), (low, high) in {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }.items():
        assert wilson_interval(correct, n) == pytest.approx((low, high), abs=5e-5)


@given(shares())
def test_wilson_interval_holds_the_share_and_is_symmetric(share):
    correct, n = share
    low, high = wilson_interval(correct, n)
    assert 0 <= low <= correct / n <= high <= 1
    assert wilson_interval(n - correct, n) == pytest.approx((1 - high, 1 - low))


@given(shares())
def test_wilson_interval_narrows_with_more_of_the_same(share):
    correct, n = share
    low, high = wilson_interval(correct, n)
    closer_low, closer_high = wilson_interval(4 * correct, 4 * n)
    assert closer_high - closer_low < high - low


def test_wilson_interval_of_nothing_knows_nothing():
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("correct", "n"), [(-1, 3), (4, 3)])
def test_wilson_interval_refuses_impossible_counts(correct, n):
    with pytest.raises(ValueError, match="0 <= correct <= n"):
        wilson_interval(correct, n)


@given(rows_strategy())
def test_groups_of_a_summary_add_up(rows):
    summary = summarise(rows)
    for groups in (
        summary["by_hops"].values(),
        summary["by_answer"].values(),
        (summary["in_template"], summary["out_of_template"]),
    ):
        for figure in ("n", "scored", "correct"):
            assert sum(group[figure] for group in groups) == summary[figure]
    assert sum(summary["status"].values()) == summary["n"] == len(rows)


@given(rows_strategy())
def test_unscored_rows_lower_the_floor_but_not_the_accuracy(rows):
    summary = summarise(rows)
    unscored = EvaluationRow(
        id="x", task_id="x", protocol="agent", split="test", hops=1, status=Status.GRADER_ERROR, reward=None
    )
    worse = summarise([*rows, unscored])
    assert worse["accuracy"] == summary["accuracy"]
    assert worse["accuracy_floor"] <= summary["accuracy_floor"]
    if summary["accuracy"] is not None:
        assert summary["accuracy_floor"] <= summary["accuracy"]


@given(rows_strategy())
def test_order_of_rows_does_not_matter(rows):
    assert summarise(rows) == summarise(rows[::-1])


@settings(deadline=None)  # the first table pays for Arrow's imports
@given(rows_strategy())
def test_rows_survive_the_table(rows):
    assert rows_from_table(rows_table(rows)) == sorted(rows, key=lambda row: row.id)


def test_nothing_scored_has_no_accuracy():
    row = EvaluationRow(
        id="a", task_id="a", protocol="agent", split="test", hops=1, status=Status.JUDGE_ERROR, reward=None
    )
    assert figures([row])["accuracy"] is None
    assert figures([row])["accuracy_floor"] == 0
    assert figures([])["accuracy_floor"] is None


@pytest.mark.parametrize("change", [{"split": "gate"}, {"protocol": "zero_shot"}, {}])
def test_mixed_or_doubled_rows_are_refused(change):
    first = {"id": "a", "task_id": "a", "protocol": "agent", "split": "test", "hops": 1}
    first |= {"status": Status.COMPLETED, "reward": 1.0}
    with pytest.raises(ValueError, match="summarise"):
        summarise([EvaluationRow(**first), EvaluationRow(**{**first, **change})])


def test_partial_credit_is_not_correct():
    row = EvaluationRow(
        id="a", task_id="a", protocol="agent", split="test", hops=1, status=Status.COMPLETED, reward=0.5
    )
    assert row.scored
    assert not row.correct


def test_every_status_is_either_scored_or_not():
    assert POLICY_FAILURES.isdisjoint(SCORING_FAILURES)
    assert POLICY_FAILURES | SCORING_FAILURES | {Status.COMPLETED} == set(Status)


def test_find_entry_takes_protocol_and_split():
    summary = {"protocols": [{"name": "agent", "split": "gate"}, {"name": "agent", "split": "test", "n": 1}]}
    assert find_entry(summary, "agent", "test") == {"name": "agent", "split": "test", "n": 1}
    assert find_entry(summary, "teacher", "test") is None
