"""The promotion gate: who is promoted, who is not, and why."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.config import RegistryConfig
from afm_core.evaluation.gate import Outcome, Side, decide, mcnemar_p_value, paired_interval

RULES = RegistryConfig()
verdicts = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=200)


def side(digest, outcomes):
    return Side(digest, {str(number): verdict for number, verdict in enumerate(outcomes)})


def judge(challenger, champion, rules=RULES):
    return decide(side("new", challenger), side("old", champion), rules).outcome


def test_a_better_challenger_is_promoted():
    decision = decide(side("new", [True] * 8 + [False] * 2), side("old", [True] * 2 + [False] * 8), RULES)
    assert decision.outcome is Outcome.PROMOTED
    assert decision.promoted
    assert decision.paired.difference == pytest.approx(0.6)
    assert "p = 0.031" in decision.reason


def test_equal_accuracy_is_no_gain():
    assert judge([True, False], [False, True]) is Outcome.NO_GAIN


def test_a_worse_challenger_is_refused():
    assert judge([True, False], [True, True]) is Outcome.KEPT_CHAMPION


def test_champion_as_its_own_challenger_is_a_named_no_op():
    same = side("old", [True, False])
    assert decide(same, same, RULES).outcome is Outcome.ALREADY_CHAMPION


@pytest.mark.parametrize("who", ["challenger", "champion"])
@pytest.mark.parametrize(("unscored", "refused"), [(1, False), (2, True)])
def test_more_than_one_percent_unscored_is_refused(who, unscored, refused):
    clean, spoiled = [True] * 100, [None] * unscored + [True] * (100 - unscored)
    outcome = judge(clean, spoiled) if who == "champion" else judge(spoiled, clean)
    assert (outcome is Outcome.REFUSED_UNSCORED) == refused


@pytest.mark.parametrize("sides", [([], []), ([None], [True]), ([True], [None])])
def test_nothing_scored_is_refused(sides):
    assert judge(*sides) is Outcome.REFUSED_UNSCORED


def test_different_gate_tasks_are_refused():
    assert judge([True, True], [False]) is Outcome.REFUSED_UNPAIRED


def test_a_gain_equal_to_the_minimum_is_not_more_than_it():
    # 0.29 - 0.28 > 0.01 in floating point.
    rules = RegistryConfig(minimum_gain=0.01)
    assert judge([True] * 29 + [False] * 71, [True] * 28 + [False] * 72, rules) is Outcome.NO_GAIN
    assert judge([True] * 30 + [False] * 70, [True] * 28 + [False] * 72, rules) is Outcome.PROMOTED


@given(verdicts)
def test_never_both_promoted_whichever_way_round(pairs):
    forward = judge([a for a, _ in pairs], [b for _, b in pairs])
    backward = judge([b for _, b in pairs], [a for a, _ in pairs])
    assert [forward, backward].count(Outcome.PROMOTED) <= 1
    assert (forward is Outcome.PROMOTED) == (backward is Outcome.KEPT_CHAMPION)


@given(verdicts)
def test_decision_is_plain_json(pairs):
    decision = decide(side("new", [a for a, _ in pairs]), side("old", [b for _, b in pairs]), RULES)
    assert json.loads(json.dumps(decision.to_json()))["outcome"] == decision.outcome


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_paired_interval_turns_around_with_the_sides(first_only, second_only, ties):
    n = first_only + second_only + ties
    low, high = paired_interval(first_only, second_only, n)
    assert -1 <= low <= high <= 1
    turned = paired_interval(second_only, first_only, n)
    assert turned == pytest.approx((-high, -low))


def test_mcnemar_known_values():
    assert mcnemar_p_value(0, 0) == 1.0
    assert mcnemar_p_value(5, 5) == 1.0
    assert mcnemar_p_value(0, 6) == pytest.approx(2 / 64)
    assert mcnemar_p_value(1, 9) == pytest.approx(2 * 11 / 1024)
