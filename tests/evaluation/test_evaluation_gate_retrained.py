"""The gate of retraining: better on the new tasks, not worse on the old ones, and enough of them to know."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.config import RegistryConfig
from afm_core.data import NewTasks, new_tasks
from afm_core.evaluation import Decision, Outcome, Side, decide, decide_retrained, tasks_needed, too_few
from afm_core.evaluation.gate import mcnemar_p_value

RULES = RegistryConfig()
WON, LOST, SAME = (True, False), (False, True), (True, True)
pairs = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40)


def judge(new: list, old: list, rules: RegistryConfig = RULES) -> Decision:
    tasks = {**{f"n{i}": pair for i, pair in enumerate(new)}, **{f"o{i}": pair for i, pair in enumerate(old)}}
    challenger, champion = (Side(name, {k: pair[i] for k, pair in tasks.items()}) for i, name in enumerate("ab"))
    return decide_retrained(challenger, champion, rules, [f"n{i}" for i in range(len(new))])


@pytest.mark.parametrize(
    ("new", "old", "outcome"),
    [
        ([WON] * 6, [SAME] * 50, Outcome.PROMOTED),
        ([WON] * 6, [], Outcome.PROMOTED),
        ([WON] * 6, [SAME] * 49 + [LOST], Outcome.PROMOTED),
        ([WON] * 6, [SAME] * 48 + [LOST] * 2, Outcome.REGRESSED),
        ([WON] * 5, [WON] * 50, Outcome.REFUSED_TOO_FEW),
        ([], [WON] * 50, Outcome.REFUSED_TOO_FEW),
        ([SAME] * 6, [WON] * 50, Outcome.NO_GAIN),
        ([SAME] * 5 + [LOST], [WON] * 50, Outcome.KEPT_CHAMPION),
        ([WON] * 6 + [(None, True)], [SAME] * 50, Outcome.REFUSED_UNSCORED),
        ([WON] * 6, [SAME] * 9 + [(None, True)], Outcome.REFUSED_UNSCORED),
    ],
)
def test_new_and_old_tasks_are_judged_apart(new: list, old: list, outcome: Outcome) -> None:
    decision = judge(new, old)
    assert decision.outcome is outcome, decision.reason
    assert decision.challenger.n == len(new) + len(old)
    assert (decision.groups["new"].challenger.n, decision.groups["old"].champion.n) == (len(new), len(old))


def test_the_margin_is_the_configured_one() -> None:
    assert judge([WON] * 6, [SAME] * 9 + [LOST], RegistryConfig(maximum_regression=0.1)).promoted
    assert not judge([WON] * 6, [SAME] * 9 + [LOST], RegistryConfig(maximum_regression=0.09)).promoted


@pytest.mark.parametrize(("level", "needed"), [(0.05, 6), (0.01, 8), (0.5, 2), (0.99, 2), (1e-6, 21)])
def test_the_number_needed_is_the_first_that_can_be_told_from_chance(level: float, needed: int) -> None:
    assert tasks_needed(level) == needed
    assert mcnemar_p_value(needed, 0) <= level < mcnemar_p_value(needed - 1, 0)


def test_too_few_names_both_numbers() -> None:
    assert too_few(6, RULES) is None
    assert too_few(2, RULES).startswith("2 new gate tasks, and 6 are needed")
    assert judge([WON] * 2, []).reason == too_few(2, RULES)
    assert judge([WON] * 6 + [(None, None)], [], RegistryConfig(maximum_unscored=1, significance=0.02)).outcome is (
        Outcome.REFUSED_TOO_FEW
    )


def test_the_champion_itself_and_other_tasks_are_no_challenge() -> None:
    side = Side("a", {"n0": True})
    assert decide_retrained(side, side, RULES, ["n0"]).outcome is Outcome.ALREADY_CHAMPION
    other = Side("b", {f"n{i}": True for i in range(7)})
    new = [f"n{i}" for i in range(7)]
    assert decide_retrained(Side("a", dict.fromkeys(new[:6], True)), other, RULES, new).outcome is (
        Outcome.REFUSED_UNPAIRED
    )


@given(pairs)
def test_where_all_tasks_are_new_it_is_the_plain_gate(new: list) -> None:
    sides = [Side(name, {f"n{i}": pair[n] for i, pair in enumerate(new)}) for n, name in enumerate("ab")]
    plain = decide(*sides, RULES)
    expected = plain.outcome if len(new) >= 6 else Outcome.REFUSED_TOO_FEW
    assert judge(new, []).outcome is expected


@given(pairs, pairs)
def test_a_decision_is_plain_json_and_the_plain_one_has_no_groups(new: list, old: list) -> None:
    values = json.loads(json.dumps(judge(new, old).to_json()))
    assert set(values["groups"]) == {"new", "old"}
    plain = decide(Side("a", {"t": True}), Side("b", {"t": False}), RULES)
    assert set(plain.to_json()) == set(values) - {"groups"}


def test_what_is_new_survives_the_way_through_a_file(tmp_path: Path) -> None:
    assert new_tasks(tmp_path) is None
    grown = NewTasks(pool="default", version=3, known=1, tasks=("a", "b"))
    grown.write(tmp_path)
    assert new_tasks(tmp_path) == grown
