"""The time left: from the rate, unknown until there is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.execution.pace import Pace, duration


def paced(points: list[tuple[int, float]], total: int = 100) -> Pace:
    (done, time), *later = points
    pace = Pace(done, total, time)
    for done, time in later:
        pace = pace.advanced(done, total, time)
    return pace


@pytest.mark.parametrize("points", [[(0, 5.0)], [(40, 5.0)], [(40, 5.0), (40, 50.0)]])
def test_without_an_advance_it_is_unknown(points) -> None:
    assert paced(points).seconds_left is None


@given(each=st.floats(0.01, 100), steps=st.lists(st.integers(1, 9), min_size=1, max_size=9), start=st.integers(0, 10))
def test_at_a_constant_rate_it_is_exact_whatever_was_there_before(each: float, steps: list[int], start: int) -> None:
    points, done = [(start, 3.0)], start
    for step in steps:
        done += step
        points.append((done, 3.0 + (done - start) * each))
    assert paced(points).seconds_left == pytest.approx((100 - done) * each)


def test_a_pause_counts_once_the_count_goes_on() -> None:
    assert paced([(0, 0.0), (10, 10.0), (10, 60.0), (11, 61.0)]).seconds_left == pytest.approx(89 * (0.3 * 51 + 0.7))


def test_one_slow_step_does_not_decide() -> None:
    steady = [(number, float(number)) for number in range(50)]
    assert 50 < paced([*steady, (50, 59.0)]).seconds_left < 50 * 10 / 2


@pytest.mark.parametrize(("done", "total"), [(2, 100), (30, 40)])
def test_another_phase_begins_anew(done: int, total: int) -> None:
    assert paced([(0, 0.0), (20, 9.0)]).advanced(done, total, 10.0) == Pace(done, total, 10.0)


@given(st.lists(st.tuples(st.integers(0, 120), st.floats(0, 1e6)), min_size=1))
def test_it_is_never_negative(points) -> None:
    left = paced(points).seconds_left
    assert left is None or left >= 0


@pytest.mark.parametrize(
    ("seconds", "words"), [(4.4, "4 s"), (99, "99 s"), (100, "2 min"), (5900, "98 min"), (11100, "3 h 05 min")]
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
