"""Packing laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.tokens import length_buckets, pack

lengths = st.lists(st.integers(0, 100), max_size=60)


@given(lengths)
def test_every_index_once_within_capacity_and_deterministic(values: list[int]) -> None:
    for arrange in (pack, length_buckets):
        groups = arrange(values, 100)
        assert sorted(index for group in groups for index in group) == list(range(len(values)))
        assert all(groups)
        assert arrange(values, 100) == groups


@given(lengths)
def test_bins_hold_at_most_their_capacity_and_no_two_fit_together(values: list[int]) -> None:
    sums = sorted(sum(values[index] for index in group) for group in pack(values, 100))
    assert all(total <= 100 for total in sums)
    assert len(sums) < 2 or sums[0] + sums[1] > 100


@given(lengths)
def test_buckets_bound_the_padded_size(values: list[int]) -> None:
    for group in length_buckets(values, 100):
        assert len(group) * max(values[index] for index in group) <= 100


def test_best_fit_fills_the_fullest_bin_that_has_room() -> None:
    assert pack([50, 70, 30, 40], 100) == [[1, 2], [0, 3]]
    assert pack([30, 70], 100) == [[0, 1]]
    assert pack([], 10) == []


@pytest.mark.parametrize("bad", [101, -1])
def test_a_length_that_cannot_fit_is_named(bad: int) -> None:
    for arrange in (pack, length_buckets):
        with pytest.raises(ValueError, match=f"item 1 has {bad} tokens"):
            arrange([5, bad], 100)
