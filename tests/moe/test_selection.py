"""Scores worked out by hand, smallest sets, budgets, paths, controls; what is no selection is refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.config import ConfigError
from afm_core.moe.selection import (
    ExpertSelection,
    Score,
    best_experts,
    on_paths,
    random_experts,
    scores,
    smallest_sets,
    to_selection,
    within_budget,
)

COUNTS = np.array([[[6, 3, 1, 0]], [[2, 1, 3, 4]]])  # two domains, one layer, four experts
GATES = np.array([[[3.0, 4.0, 1.0, 0.0]], [[1.0, 1.0, 1.0, 1.0]]])


def test_token_and_gate_scores_are_shares() -> None:
    token, lift = scores(Score.TOKEN, 0, COUNTS, GATES)
    assert token.tolist() == [[0.6, 0.3, 0.1, 0.0]]
    assert lift == pytest.approx(np.array([[0.6 / 0.4, 0.3 / 0.2, 0.1 / 0.2, 0.0]]))
    assert scores(Score.GATE, 0, COUNTS, GATES)[0].tolist() == [[0.375, 0.5, 0.125, 0.0]]


def test_contribution_counts_what_is_used_more_than_in_the_background() -> None:
    contribution, _ = scores(Score.CONTRIBUTION, 0, COUNTS, GATES)
    assert contribution == pytest.approx(np.array([[2 / 3, 1 / 3, 0, 0]]))


def test_the_fewest_experts_that_reach_the_mass() -> None:
    row = np.array([[0.6, 0.3, 0.1, 0.0], [0.25, 0.25, 0.25, 0.25]])
    assert smallest_sets(row, 0.6) == [[0], [0, 1, 2]]
    assert smallest_sets(row, 0.9) == [[0, 1], [0, 1, 2, 3]]
    assert smallest_sets(row, 1.0, lift=np.array([[2, 0.5, 2, 2], [1, 2, 2, 1.0]]), minimum_lift=1.5) == [
        [0, 2],
        [1, 2],
    ]


def test_a_budget_keeps_the_best() -> None:
    row = np.array([[0.6, 0.3, 0.1], [0.5, 0.3, 0.2]])
    assert within_budget([[0, 1], [0, 1]], row, 3) == [[0, 1], [0]]
    assert within_budget([[0], [0]], row, 0) == [[], []]


def test_experts_off_every_chain_fall_until_nothing_falls() -> None:
    lift = np.zeros((2, 4, 4))
    lift[0, 0, 1] = lift[1, 1, 2] = 2.0  # 0 -> 1 -> 2
    lift[0, 3, 3] = 2.0  # 3 -> 3, but layer 1 has no chosen 3
    assert on_paths([[0, 3], [1], [2, 3]], lift) == [[0], [1], [2]]
    assert on_paths([[0], [], [2]], lift) == [[], [], []]


def test_controls_have_the_same_sizes() -> None:
    assert best_experts(np.array([[1, 3, 2], [9, 1, 5.0]]), [2, 1]) == [[1, 2], [0]]
    drawn = random_experts(8, [3, 0, 2], seed=1)
    assert [len(some) for some in drawn] == [3, 0, 2]
    assert drawn == random_experts(8, [3, 0, 2], seed=1) != random_experts(8, [3, 0, 2], seed=2)


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5), min_size=1, max_size=4),
    st.floats(0.01, 1),
)
def test_no_smaller_set_reaches_the_mass(rows: list[list[float]], mass: float) -> None:
    row = np.array(rows)
    row = row / np.maximum(row.sum(-1, keepdims=True), 1e-9)
    for values, some in zip(row, smallest_sets(row, mass), strict=True):
        if values.sum() >= mass:
            assert values[some].sum() >= mass - 1e-9
            assert np.sort(values)[::-1][: len(some) - 1].sum() < mass


def test_a_selection_is_stored_and_fits_its_model_only(tmp_path: Path) -> None:
    shape = {"num_experts": 4, "expert_parameters": 10, "parameters": 1000}
    selection = to_selection("code", Score.TOKEN, [[0, 2], []], [1, 3], shape)
    assert (selection.experts, selection.trainable_share) == ({"1": [0, 2]}, 0.02)
    selection.save(tmp_path / "selection.json")
    assert ExpertSelection.load(tmp_path / "selection.json") == selection
    assert selection.chosen([1, 3]) == [[0, 2], []]
    with pytest.raises(ConfigError, match="names layer 1, no mixture layer"):
        selection.chosen([0, 3])
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(ConfigError, match=r"other.json is no selection"):
        ExpertSelection.load(tmp_path / "other.json")
