"""From rewards to advantages: pure functions of floats, one entry a group member or a token.

Departs from the textbook in two ways. Tool results lie between a trajectory's model tokens, so "the next step" of a
return or a bootstrap is the next *model* token: masked tokens carry no reward, no value and, unless asked for, no
discount. And a group or batch in which all rewards are equal gives exact zeros, so that "nothing to learn" can be seen
by comparing with 0. An unscored member is no reward of 0: it has to be left out before, so NaN is refused here.

Shape suffix T: tokens of one trajectory, parallel to its mask (1: a model token).
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

EPSILON = 1e-6
"""Added to a group's standard deviation (as verl does; TRL adds 1e-4)."""

VARIANCE_EPSILON = 1e-8
"""Added to the batch's variance when whitening (as verl does)."""


def grpo(rewards: Sequence[float]) -> list[float]:
    """(reward - mean) / (unbiased standard deviation + EPSILON), for one group's scored members (arXiv 2402.03300).

    Raises ValueError for fewer than two members or a reward that is not finite.
    """
    if _constant(rewards):
        return [0.0] * len(rewards)
    mean, scale = fmean(rewards), stdev(rewards) + EPSILON
    return [(reward - mean) / scale for reward in rewards]


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """reward - mean, for one group's scored members (arXiv 2503.20783). Raises ValueError as `grpo` does."""
    if _constant(rewards):
        return [0.0] * len(rewards)
    mean = fmean(rewards)
    return [reward - mean for reward in rewards]


def rloo(rewards: Sequence[float]) -> list[float]:
    """reward - mean of the *other* members of the group (arXiv 2402.14740). Raises ValueError as `grpo` does."""
    if _constant(rewards):
        return [0.0] * len(rewards)
    total, others = math.fsum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


def generalized_advantages(
    rewards_T: Sequence[float],
    values_T: Sequence[float],
    mask_T: Sequence[int],
    discount: float,
    lam: float,
    positional: bool = False,
) -> list[float]:
    """Generalized advantage estimation over model tokens (arXiv 1506.02438); 0 where the mask is 0.

    With n the next model token after t, and d = 1: A_t = r_t + discount^d V_n - V_t + discount^d lam A_n. Rewards and
    values of masked tokens are not read, and the last model token bootstraps from nothing.

    The discount is applied once a model token, however long a tool's result is. `positional` instead takes d = n - t,
    the distance in tokens (slime's and miles' convention); lam counts model tokens either way. With values of 0 and
    lam = 1 the advantages are the discounted returns. Raises ValueError if the lengths differ.
    """
    _check_lengths(rewards_T, values_T, mask_T)
    advantages = [0.0] * len(mask_T)
    following: int | None = None
    for place in reversed(range(len(mask_T))):
        if not mask_T[place]:
            continue
        advantages[place] = rewards_T[place] - values_T[place]
        if following is not None:
            gamma = discount ** (following - place) if positional else discount
            advantages[place] += gamma * (values_T[following] + lam * advantages[following])
        following = place
    return advantages


def discounted_returns(
    rewards_T: Sequence[float], mask_T: Sequence[int], discount: float, positional: bool = False
) -> list[float]:
    """G_t = r_t + discount G_n over model tokens (see `generalized_advantages`); 0 where the mask is 0."""
    return generalized_advantages(rewards_T, [0.0] * len(mask_T), mask_T, discount, 1.0, positional)


def reinforce_pp(
    rewards: Sequence[Sequence[float]], masks: Sequence[Sequence[int]], discount: float
) -> list[list[float]]:
    """REINFORCE++ (arXiv 2501.03262): discounted returns, whitened over all model tokens of the batch.

    rewards, masks: a list a trajectory, with an entry a token (see `terminal_rewards`). Returns the same shape, 0 where
    a mask is 0. Whitened: (G - mean) / sqrt(unbiased variance + VARIANCE_EPSILON); a batch of equal returns gives 0.
    Raises ValueError if lengths differ or a model token's reward is not finite.
    """
    returns = [discounted_returns(r, m, discount) for r, m in zip(rewards, masks, strict=True)]
    flat = [
        value for row, mask in zip(returns, masks, strict=True) for value, kept in zip(row, mask, strict=True) if kept
    ]
    _check_finite(flat)
    if not flat or min(flat) == max(flat):
        return [[0.0] * len(mask) for mask in masks]
    mean, scale = fmean(flat), math.sqrt(stdev(flat) ** 2 + VARIANCE_EPSILON)
    return [
        [(value - mean) / scale if kept else 0.0 for value, kept in zip(row, mask, strict=True)]
        for row, mask in zip(returns, masks, strict=True)
    ]


def terminal_rewards(reward: float, mask_T: Sequence[int]) -> list[float]:
    """A trajectory's one reward on its last model token, 0 elsewhere. Raises ValueError if it has no model token."""
    places = [place for place, kept in enumerate(mask_T) if kept]
    if not places:
        raise ValueError("a trajectory without a model token can carry no reward")
    return [reward if place == places[-1] else 0.0 for place in range(len(mask_T))]


def overlong_penalty(model_tokens: int, limit: int, buffer: int, penalty: float) -> float:
    """DAPO's soft punishment of length (arXiv 2503.14476, formula 13), to be added to a reward.

    0 up to limit - buffer model tokens, then linear down to -penalty at the limit and beyond; a buffer of 0 is off.
    Observations do not count. Raises ValueError if the buffer exceeds the limit.
    """
    if buffer > limit:
        raise ValueError(f"the overlong buffer of {buffer} tokens exceeds the limit of {limit}: rl.overlong_buffer")
    excess = model_tokens - (limit - buffer)
    if buffer == 0 or excess <= 0:
        return 0.0
    return -penalty * min(1.0, excess / buffer)


def _constant(rewards: Sequence[float]) -> bool:
    """Whether a group has nothing to compare; refuses what is no group."""
    if len(rewards) < 2:
        raise ValueError(f"a group needs two scored members to be compared, not {len(rewards)}: see rl.minimum_group")
    _check_finite(rewards)
    return min(rewards) == max(rewards)


def _check_finite(values: Sequence[float]) -> None:
    for place, value in enumerate(values):
        if not math.isfinite(value):
            raise ValueError(f"reward {place} is {value}: a member without a score must be left out, not compared")


def _check_lengths(rewards_T: Sequence[float], values_T: Sequence[float], mask_T: Sequence[int]) -> None:
    if not len(rewards_T) == len(values_T) == len(mask_T):
        raise ValueError(
            f"one entry a token: {len(rewards_T)} rewards, {len(values_T)} values, {len(mask_T)} mask entries"
        )
