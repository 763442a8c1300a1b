"""Groups: who counts, what is a signal, and rows that hold exactly what was sampled."""

import math

import pytest
from group_samples import AGENT, ANSWER, CALL, TASK, VERSIONS, config, rewarded, trajectory
from hypothesis import given
from hypothesis import strategies as st

from afm_core.config import AgentConfig, Budget, Estimator
from afm_core.data import Origin, Status
from afm_core.tokens import MaskError
from afm_core.training.rl.cursor import PromptOutcome
from afm_core.training.rl.eligibility import Masked
from afm_core.training.rl.groups import Assessed, Group, Member, assess, experience, masked_counts, shaped_reward


def assessed(trajectories, index=0, current=0, agent=AGENT, **fields):
    return assess(Group(index, TASK, tuple(trajectories)), config(**fields), agent, VERSIONS, current)


def scalar(row):
    """The one advantage of a row's model tokens."""
    values = {value for value, kept in zip(row.advantages, row.mask, strict=True) if kept}
    assert len(values) == 1
    return values.pop()


# --- who counts


def test_trl_5773_one_nan_reward_is_dropped_and_counted():
    """trl#5773: a NaN in a group made its mean, and every advantage, NaN."""
    rewards = (1.0, math.nan, 0.0, math.inf)
    group = assessed(rewarded(*rewards))
    assert group.masked == {Masked.NOT_FINITE: 2}
    rows = experience([group], config())
    assert [row.id for row in rows] == ["episode-0", "episode-2"]
    assert [scalar(row) for row in rows] == pytest.approx([2**-0.5, -(2**-0.5)], abs=1e-5)


def test_trl_5773_a_single_number_among_nans_is_no_group():
    group = assessed(rewarded(1.0, *[math.nan] * 7))
    assert not group.has_signal
    assert group.masked == {Masked.NOT_FINITE: 7, Masked.SMALL_GROUP: 1}
    assert experience([group], config()) == []


@pytest.mark.parametrize("estimator", list(Estimator))
def test_trl_6369_a_masked_truncated_member_counts_nowhere(estimator):
    """trl#6369: truncated tokens were in the denominator and not in the numerator. The rest trains as if alone."""
    good = rewarded(1.0, 0.0, 0.5)
    cut = trajectory(9, 0.0, Status.TRUNCATED)
    fields = {"truncated": "mask", "estimator": estimator}
    with_it, without = assessed([*good, cut], **fields), assessed(good, **fields)
    assert with_it.masked == {Masked.TRUNCATED: 1}
    assert experience([with_it], config(**fields)) == experience([without], config(**fields))


@pytest.mark.parametrize("estimator", list(Estimator))
def test_trl_6367_dead_groups_leave_the_rows_of_the_live_half(estimator):
    """trl#6367: groups without signal diluted every denominator."""
    live = [assessed(rewarded(1.0, 0.0, 0.0), index, estimator=estimator) for index in (0, 2)]
    dead = [assessed(rewarded(1.0, 1.0, 1.0), index, estimator=estimator) for index in (1, 3)]
    mixed = [live[0], dead[0], live[1], dead[1]]
    assert experience(mixed, config(estimator=estimator)) == experience(live, config(estimator=estimator))


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_verl_953_dapo_22_no_signal_is_a_named_outcome(reward):
    """verl#953, DAPO#22: when no prompt had a signal the run died. Here it is an outcome, and no row."""
    groups = [assessed(rewarded(*[reward] * 4), index) for index in range(3)]
    assert all(group.outcome is PromptOutcome.NO_SIGNAL for group in groups)
    assert masked_counts(groups) == {"no_signal": 12}
    assert experience(groups, config()) == []


def test_rllm_710_a_grader_crash_is_excluded_from_the_group():
    """rllm#710: a verifier that crashed gave reward 0, which moved the mean of the group."""
    crashed = trajectory(9, None, Status.GRADER_ERROR)
    group = assessed([*rewarded(1.0, 1.0), crashed])
    assert group.masked == {Masked.GRADER_ERROR: 1, Masked.NO_SIGNAL: 2}
    mixed = assessed([*rewarded(1.0, 0.0), crashed], estimator="dr_grpo")
    assert [scalar(row) for row in experience([mixed], config(estimator="dr_grpo"))] == [0.5, -0.5]


def test_minimum_group_counts_members_that_may_train():
    cut = trajectory(9, 0.0, Status.TRUNCATED)
    members = [*rewarded(1.0, 0.0), cut]
    assert assessed(members, minimum_group=3).has_signal
    small = assessed(members, minimum_group=3, truncated="mask")
    assert small.outcome is PromptOutcome.SMALL_GROUP
    assert small.masked == {Masked.TRUNCATED: 1, Masked.SMALL_GROUP: 2}


# --- age


def test_staleness_follows_the_oldest_turn():
    mixed = trajectory(0, 1.0, versions=("v0", "v2"))
    fresh = trajectory(1, 0.0, versions=("v2", "v2"))
    rows = experience([assessed([mixed, fresh], current=2, maximum_staleness=2)], config())
    assert [row.staleness for row in rows] == [2, 0]


def test_a_trajectory_older_than_allowed_is_masked_as_stale():
    members = [trajectory(n, n % 2, versions=(version, "v2")) for n, version in enumerate(["v1", "v2", "v1", "v0"])]
    group = assessed(members, current=2, maximum_staleness=1)
    assert group.masked == {Masked.STALE: 1}
    synchronous = assessed(members, current=2)
    assert synchronous.masked == {Masked.STALE: 3, Masked.SMALL_GROUP: 1}


def test_weights_the_trainer_never_made_are_refused():
    with pytest.raises(ValueError, match=r"episode-0 .*'foreign'"):
        assessed([trajectory(versions=("foreign",))])


def test_an_unscored_trajectory_is_never_asked_for_its_age():
    group = assessed([trajectory(0, None, Status.ABORTED, versions=("foreign",)), *rewarded(1.0, 0.0)])
    assert group.masked == {Masked.ABORTED: 1}


# --- rewards


def test_the_overlong_penalty_counts_sampled_tokens_only():
    one = trajectory()
    sampled = len(CALL) + len(ANSWER)
    agent = AgentConfig(budget=Budget(total_tokens=sampled + 10))
    half = config(overlong_buffer=20, overlong_penalty=1.0)
    assert shaped_reward(one, half, agent) == pytest.approx(1.0 - 0.5)
    assert shaped_reward(one, config(), agent) == 1.0


def test_the_format_is_rewarded_where_an_answer_came_the_more_the_fewer_violations():
    right, wrong, cut = trajectory(0, 1.0), trajectory(1, 0.0), trajectory(2, 0.0, Status.TRUNCATED)
    broken = right.model_copy(update={"violations": ("unclosed_tag",)})
    rewards = [shaped_reward(one, config(format_weight=0.1), AGENT) for one in (right, wrong, cut, broken)]
    assert rewards == pytest.approx([1.0, 0.1, 0.0, 0.95])


def test_a_penalty_can_be_the_signal():
    short, long = trajectory(0, 1.0, turns=(ANSWER,)), trajectory(1, 1.0)
    agent = AgentConfig(budget=Budget(total_tokens=len(CALL) + len(ANSWER)))
    group = assessed([short, long], agent=agent, overlong_buffer=10)
    assert [member.reward for member in group.members] == [1.0, 0.0]


# --- rows


def test_a_row_is_what_was_sampled_token_by_token():
    one, other = trajectory(0, 1.0), trajectory(1, 0.0)
    row = experience([assessed([one, other], index=7)], config())[0]
    assert row.group == 7
    assert row.ids == tuple(token for segment in one.segments for token in segment.token_ids)
    expected = []
    for segment in one.segments:
        learned = segment.origin is Origin.SAMPLED
        expected += list(zip([int(learned)] * len(segment.token_ids), segment.logprobs or [0.0] * 99, strict=False))
    assert list(zip(row.mask, row.logprobs, strict=True)) == expected
    assert all(value == 0 for value, kept in zip(row.advantages, row.mask, strict=True) if not kept)
    assert row.supervised == len(CALL) + len(ANSWER)


def test_no_end_of_turn_is_appended():
    """It would have no log-probability: RL trains what was sampled and nothing else."""
    one, other = trajectory(0, 1.0), trajectory(1, 0.0)
    row = experience([assessed([one, other])], config())[0]
    assert len(row.ids) == sum(len(segment.token_ids) for segment in one.segments)


def test_reinforce_pp_puts_the_reward_on_the_last_model_token():
    fields = {"estimator": "reinforce_pp", "discount": 0.9}
    rows = experience([assessed(rewarded(1.0, 0.0), **fields)], config(**fields))
    right = [value for value, kept in zip(rows[0].advantages, rows[0].mask, strict=True) if kept]
    assert right == sorted(right)
    assert right[0] < right[-1]
    wrong = {value for value, kept in zip(rows[1].advantages, rows[1].mask, strict=True) if kept}
    assert len(wrong) == 1


def test_a_batch_that_is_all_model_tokens_is_refused():
    """The gate of masks stands before every update, even if a rollout forgot its prompts."""
    bare = [one.model_copy(update={"segments": one.segments[1:2]}) for one in rewarded(1.0, 0.0)]
    group = Assessed(
        Group(0, TASK, tuple(bare)), tuple(Member(one, one.reward, 0) for one in bare), {}, PromptOutcome.TRAINED
    )
    with pytest.raises(MaskError, match="all of the"):
        experience([group], config())


_MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(Status),
        st.none() | st.sampled_from([0.0, 1.0, 0.5, math.nan, math.inf]),
        st.lists(st.sampled_from([CALL, ANSWER, "<think>t</think>", ""]), max_size=3),
        st.sampled_from(["v0", "v1", "v2"]),
    ),
    max_size=6,
)


@given(
    groups=st.lists(_MEMBERS, max_size=4),
    estimator=st.sampled_from(Estimator),
    policy=st.sampled_from(["train", "mask"]),
    staleness=st.integers(0, 2),
    longest=st.sampled_from([60, 1024]),
)
def test_what_comes_in_is_trained_or_masked_and_arrays_stay_parallel(groups, estimator, policy, staleness, longest):
    fields = {
        "estimator": estimator, "truncated": policy, "void_turn": policy, "maximum_staleness": staleness,
        "max_tokens": longest,
    }  # fmt: skip
    sorted_groups = [
        assessed(
            [trajectory(n, r, s, t, versions=(v,) * 3) for n, (s, r, t, v) in enumerate(members)], index, 2, **fields
        )
        for index, members in enumerate(groups)
    ]
    rows = experience(sorted_groups, config(**fields))
    for index, group in enumerate(sorted_groups):
        assert len(group.group.trajectories) == len(group.members) + sum(group.masked.values())
        assert all(group.masked.values())
        assert [row.id for row in rows if row.group == index] == [member.trajectory.id for member in group.members]
        assert group.has_signal is (len({member.reward for member in group.members}) > 1)
    assert sum(map(len, groups)) == len(rows) + sum(masked_counts(sorted_groups).values())
    for row in rows:
        assert len(row.ids) == len(row.mask) == len(row.logprobs) == len(row.advantages) <= longest
        assert row.supervised > 0
        assert row.staleness <= staleness
        assert all(math.isfinite(value) for value in (*row.advantages, *row.logprobs))
