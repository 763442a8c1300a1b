"""Advantages against values worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from afm_core.config import RlConfig
from afm_core.training.rl.advantages import (
    discounted_returns,
    dr_grpo,
    generalized_advantages,
    grpo,
    overlong_penalty,
    reinforce_pp,
    rloo,
    terminal_rewards,
)

GROUP_ESTIMATORS = [grpo, dr_grpo, rloo]


def test_grpo_divides_by_the_unbiased_deviation() -> None:
    # mean 1/4, deviations 3/4 and three times -1/4: variance (9/16 + 3/16) / 3 = 1/4, standard deviation 1/2.
    assert grpo([1, 0, 0, 0]) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=4e-6)
    # The epsilon of 1e-6 is added to 1/2: 0.75 / 0.500001.
    assert grpo([1, 0, 0, 0])[0] == pytest.approx(0.75 / 0.500001, abs=1e-12)


def test_dr_grpo_only_takes_the_mean_off() -> None:
    assert dr_grpo([1, 0, 0, 0]) == [0.75, -0.25, -0.25, -0.25]


def test_rloo_compares_with_the_others() -> None:
    # 1 - 0; 0 - (1 + 0 + 0) / 3.
    assert rloo([1, 0, 0, 0]) == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
@given(reward=st.floats(-5, 5), size=st.integers(2, 16))
def test_a_group_of_equals_gives_exact_zeros(estimator, reward: float, size: int) -> None:
    assert estimator([reward] * size) == [0.0] * size


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
@given(rewards=st.lists(st.floats(-5, 5), min_size=2, max_size=16))
def test_advantages_of_a_group_sum_to_zero_and_keep_the_order(estimator, rewards: list[float]) -> None:
    advantages = estimator(rewards)
    assert math.fsum(advantages) == pytest.approx(0, abs=1e-6)
    best = max(range(len(rewards)), key=rewards.__getitem__)
    assert advantages[best] == max(advantages)


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
def test_axolotl_3353_a_group_of_one_is_refused(estimator) -> None:
    with pytest.raises(ValueError, match="two scored members"):
        estimator([1.0])
    with pytest.raises(ValidationError, match="group_size"):
        RlConfig(group_size=1)


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
def test_trl_5773_one_nan_reward_never_reaches_the_mean(estimator) -> None:
    # TRL's group of [1, nan x 7]: the unscored are no members, and one member is no group.
    with pytest.raises(ValueError, match="reward 1 is nan"):
        estimator([1.0, *[math.nan] * 7])
    scored = [reward for reward in [1.0, math.nan, 0.0, math.nan] if not math.isnan(reward)]
    assert all(math.isfinite(advantage) for advantage in estimator(scored))


def test_generalized_advantages_by_hand() -> None:
    # A2 = 1 - 0.2 = 0.8
    # A1 = 0.9 * 0.2 - 0.4 + 0.9 * 0.8 * 0.8 = 0.18 - 0.4 + 0.576 = 0.356
    # A0 = 0.9 * 0.4 - 0.5 + 0.72 * 0.356 = 0.36 - 0.5 + 0.25632 = 0.11632
    advantages = generalized_advantages([0, 0, 1], [0.5, 0.4, 0.2], [1, 1, 1], 0.9, 0.8)
    assert advantages == pytest.approx([0.11632, 0.356, 0.8])


def test_generalized_advantages_step_over_tool_tokens() -> None:
    # A2 = 1 - 0.2 = 0.8; A0 = 0.9 * 0.2 - 0.5 + 0.72 * 0.8 = 0.18 - 0.5 + 0.576 = 0.256: the tool's token is no step.
    given_values = [0, 7, 1], [0.5, 100, 0.2], [1, 0, 1], 0.9, 0.8
    assert generalized_advantages(*given_values) == pytest.approx([0.256, 0, 0.8])
    # By position the next model token is 2 away: 0.81 * 0.2 - 0.5 + 0.81 * 0.8 * 0.8 = 0.162 - 0.5 + 0.5184 = 0.1804.
    assert generalized_advantages(*given_values, positional=True) == pytest.approx([0.1804, 0, 0.8])


def test_slime_1370_miles_1383_tool_tokens_do_not_leak_into_returns() -> None:
    kl_rewards, mask = [-1.0] * 4, [1, 0, 0, 1]
    # By position: -1 - 0.9^3 = -1.729. With the leak it was -(1 + 0.9 + 0.81 + 0.729) = -3.439.
    assert discounted_returns(kl_rewards, mask, 0.9, positional=True) == pytest.approx([-1.729, 0, 0, -1])
    # Across model tokens, as we discount: -1 - 0.9 = -1.9.
    assert discounted_returns(kl_rewards, mask, 0.9) == pytest.approx([-1.9, 0, 0, -1])


def test_miles_1827_roll_447_a_masked_value_does_not_bootstrap() -> None:
    clean = generalized_advantages([0, 1, 0], [0, 0, 0], [1, 1, 0], 1.0, 0.95)
    assert clean == pytest.approx([0.95, 1, 0])
    assert generalized_advantages([0, 1, 5], [0, 0, 100], [1, 1, 0], 1.0, 0.95) == clean


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=8),
    st.data(),
    st.floats(0.5, 1),
    st.floats(0, 1),
)
def test_inserting_tool_tokens_changes_no_advantage(steps, data, discount: float, lam: float) -> None:
    rewards, values = zip(*steps, strict=True)
    plain = generalized_advantages(rewards, values, [1] * len(steps), discount, lam)
    mask = [bit for _ in steps for bit in (*[0] * data.draw(st.integers(0, 3)), 1)]
    given_steps = iter(steps)
    spread = [next(given_steps) if bit else (9.0, 9.0) for bit in mask]
    mixed = generalized_advantages([r for r, _ in spread], [v for _, v in spread], mask, discount, lam)
    assert [value for value, bit in zip(mixed, mask, strict=True) if bit] == pytest.approx(plain)


def test_reinforce_pp_whitens_the_returns_of_the_whole_batch() -> None:
    # Discount 1/2, a reward on the last model token: returns [0.5, 1], [0], [0.5, tool, 1].
    # Mean 3 / 5 = 0.6; variance (0.01 + 0.16 + 0.36 + 0.01 + 0.16) / 4 = 0.175; deviation 0.4183300.
    advantages = reinforce_pp([[0, 1], [0], [0, 0, 1]], [[1, 1], [1], [1, 0, 1]], 0.5)
    low, high, lowest = -0.1 / 0.4183300, 0.4 / 0.4183300, -0.6 / 0.4183300
    assert [value for one in advantages for value in one] == pytest.approx([low, high, lowest, low, 0, high], rel=1e-6)


def test_reinforce_pp_of_equal_returns_is_zero() -> None:
    assert reinforce_pp([[0.1, 0.1], [0.1]], [[0, 1], [1]], 1.0) == [[0, 0], [0]]
    assert reinforce_pp([[3.0]], [[1]], 1.0) == [[0]]
    assert reinforce_pp([], [], 1.0) == []


def test_reinforce_pp_refuses_nan_and_ignores_it_on_tool_tokens() -> None:
    with pytest.raises(ValueError, match="nan"):
        reinforce_pp([[math.nan], [1]], [[1], [1]], 1.0)
    assert reinforce_pp([[math.nan, 0.0], [1.0]], [[0, 1], [1]], 1.0)[0] == pytest.approx([0, -0.7071067], abs=1e-6)


def test_the_one_reward_lies_on_the_last_model_token() -> None:
    assert terminal_rewards(2.0, [0, 1, 1, 0]) == [0, 0, 2, 0]
    with pytest.raises(ValueError, match="model token"):
        terminal_rewards(1.0, [0, 0])


def test_the_overlong_penalty_grows_over_the_buffer() -> None:
    # Limit 100, buffer 20: 0 up to 80, at 90 half of it, at 100 and beyond all of it.
    values = [overlong_penalty(tokens, 100, 20, 2.0) for tokens in (0, 80, 81, 90, 100, 130)]
    assert values == pytest.approx([0, 0, -0.1, -1, -2, -2])
    assert overlong_penalty(500, 100, 0, 1.0) == 0
    with pytest.raises(ValueError, match="overlong_buffer"):
        overlong_penalty(1, 10, 11, 1.0)


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rewards, 1 values, 2 mask"):
        generalized_advantages([0, 0], [0], [1, 1], 1.0, 1.0)
