"""Who may train: every failure has its name, and none that says nothing about the policy is a 0."""

import math

import pytest
from group_samples import ANSWER, CALL, config, sampled, trajectory
from hypothesis import given
from hypothesis import strategies as st

from afm_core.config import FailurePolicy
from afm_core.data import SCORING_FAILURES, Status
from afm_core.training.rl.eligibility import Masked, finite_reward, has_void_turn, judge

MASK_ALL = {"truncated": "mask", "parse_error": "mask", "void_turn": "mask"}


def test_a_good_trajectory_trains_under_the_strictest_configuration():
    assert judge(trajectory(), config(**MASK_ALL)) is None


@pytest.mark.parametrize("status", sorted(SCORING_FAILURES))
def test_areal_141_a_slow_or_failed_grader_is_no_zero(status):
    """AReaL#141: a judge that timed out was labelled 0. The label is missing, not 0."""
    unscored = trajectory(status=status, reward=None)
    assert judge(unscored, config()) == Masked(status.value)
    assert finite_reward(unscored) is None
    zero = trajectory(status=status, reward=0.0)
    assert judge(zero, config()) == Masked(status.value)
    assert finite_reward(zero) is None


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_trl_5773_a_reward_that_is_no_number_is_masked(reward):
    assert judge(trajectory(reward=reward), config()) is Masked.NOT_FINITE
    assert finite_reward(trajectory(reward=reward)) is None


def test_a_missing_reward_without_a_failure_is_named():
    assert judge(trajectory(reward=None), config()) is Masked.UNSCORED


@pytest.mark.parametrize(
    ("status", "field", "reason"),
    [(Status.TRUNCATED, "truncated", Masked.TRUNCATED), (Status.PARSE_ERROR, "parse_error", Masked.PARSE_ERROR)],
)
def test_known_failures_of_the_policy_train_or_not_by_configuration(status, field, reason):
    failed = trajectory(status=status, reward=0.0)
    assert judge(failed, config()) is None
    assert judge(failed, config(**{field: FailurePolicy.MASK})) is reason


@pytest.mark.parametrize(
    ("turn", "void"),
    [
        (CALL, False),
        (ANSWER, False),
        ("<think>only a thought</think>", True),
        ("plain text", True),
        ("", True),
        ("<web_search>never closed", True),
        ("<answer>never closed", True),
        ("q</web_search>", True),
        ("<observation>forged</observation>", True),
        ("<answer></answer>", False),
    ],
)
def test_a_void_turn_holds_neither_a_closed_call_nor_an_answer(turn, void):
    one = trajectory(turns=(CALL, turn))
    assert has_void_turn(one) is void
    assert judge(one, config(void_turn="mask")) is (Masked.VOID_TURN if void else None)
    assert judge(one, config()) is None


def test_a_void_turn_anywhere_masks_the_whole_trajectory():
    assert judge(trajectory(turns=("<think>t</think>", CALL, ANSWER)), config(void_turn="mask")) is Masked.VOID_TURN


def test_too_long_counts_prompt_and_observations():
    one = trajectory()
    length = sum(len(segment.token_ids) for segment in one.segments)
    assert judge(one, config(max_tokens=length)) is None
    assert judge(one, config(max_tokens=length - 1)) is Masked.TOO_LONG


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_segment_without_ids_cannot_train(place):
    one = trajectory()
    segments = list(one.segments)
    segments[place] = segments[place].model_copy(update={"token_ids": None, "logprobs": None})
    assert judge(one.model_copy(update={"segments": tuple(segments)}), config()) is Masked.NO_LOGPROBS


def test_sampled_tokens_need_finite_log_probabilities():
    one = trajectory()
    lost = (*one.segments[:-1], sampled(ANSWER, logprobs=False))
    assert judge(one.model_copy(update={"segments": lost}), config()) is Masked.NO_LOGPROBS
    broken = one.segments[-1].model_copy(update={"logprobs": (math.nan,) * len(ANSWER)})
    damaged = one.model_copy(update={"segments": (*one.segments[:-1], broken)})
    assert judge(damaged, config()) is Masked.NO_LOGPROBS


def test_an_episode_that_ended_before_its_first_token_has_nothing_to_train():
    assert judge(trajectory(status=Status.TIMEOUT, reward=0.0, turns=()), config()) is Masked.NO_LOGPROBS
    assert judge(trajectory(status=Status.TRUNCATED, reward=0.0, turns=("",)), config()) is Masked.NO_LOGPROBS


@given(status=st.sampled_from(Status), reward=st.none() | st.floats(), text=st.text(max_size=30))
def test_whatever_may_train_has_a_finite_reward_and_finite_log_probabilities(status, reward, text):
    one = trajectory(status=status, reward=reward, turns=(CALL, text))
    if judge(one, config()) is None:
        assert status not in SCORING_FAILURES
        assert finite_reward(one) == reward
    else:
        assert status in SCORING_FAILURES or finite_reward(one) is None
