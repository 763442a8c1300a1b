"""The update: what is trained, how it is weighted, when nothing is done, how it fails."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_samples import LocalEngine, experience, plain_logprobs, rl_config, row
from training_samples import small_llama

from afm_core.training.errors import TrainingFailed
from afm_core.training.rl.policy import PolicyBatch
from afm_core.training.rl.update import UpdateRecord, mini_batches, score, update


def engine_for(config, rank: int = 0, world_size: int = 1, frozen: bool = False) -> LocalEngine:
    return LocalEngine(small_llama(), config, rank, world_size, frozen)


def test_a_better_than_average_trajectory_becomes_likelier() -> None:
    config = rl_config(correction="none")
    good = row((1, 2, 3, 4, 5), (0, 0, 1, 1, 1), 1.0, (0, 0, -4, -4, -4), name="good")
    bad = row((1, 2, 9, 8, 7), (0, 0, 1, 1, 1), -1.0, (0, 0, -4, -4, -4), name="bad")
    engine = engine_for(config)
    rows = [good, bad]
    rows = [replace(one, logprobs=(0, 0, *now)) for one, now in zip(rows, score(engine, rows, config), strict=True)]
    before = [sum(values) for values in score(engine, rows, config)]
    record = update(engine, rows, config, 1)
    after = [sum(values) for values in score(engine, rows, config)]
    assert after[0] > before[0]
    assert after[1] < before[1]
    # The sampler is the policy: ratio 1, so the loss is -mean(advantage) = 0 and nothing is clipped.
    assert (record.loss, record.clip_share) == (pytest.approx(0, abs=1e-6), 0)
    assert record.kl_sampler == pytest.approx(0, abs=1e-6)
    assert (record.tokens, record.model_tokens, record.updates, record.skipped) == (10, 6, 1, False)
    assert record.gradient_norm > 0


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_loss_and_figures_by_hand(aggregation: str) -> None:
    """With correction none and the sampler far above the policy every ratio is tiny: loss -min(r A, (1 - low) A)."""
    config = rl_config(correction="none", aggregation=aggregation, max_tokens=10)
    low = row((1, 2, 3, 4), (0, 1, 1, 1), 2.0, name="low")
    high = row((5, 6), (0, 1), -3.0, name="high")
    engine = engine_for(config, frozen=True)
    scores = score(engine, [low, high], config)
    # The sampler's probabilities are twice ours: every ratio is 0.5. low: -0.5 * 2 = -1 a token, 3 tokens.
    # high: max(0.5 * 3, 0.8 * 3) = 2.4, bounded, 1 token.
    double = [tuple(value + math.log(2) for value in values) for values in scores]
    rows = [replace(low, logprobs=(0, *double[0])), replace(high, logprobs=(0, *double[1]))]
    record = update(engine, rows, config, 3)
    expected = {
        "token_mean": (-3 + 2.4) / 4,
        "sequence_mean": (-1 + 2.4) / 2,
        "constant": (-3 + 2.4) / (2 * 10),
    }
    assert record.loss == pytest.approx(expected[aggregation], abs=1e-5)
    assert record.clip_share == pytest.approx(0.25)
    assert record.logprob_difference == pytest.approx(math.log(2), abs=1e-5)
    # x = -log 2: 0.5 + 0.693147 - 1.
    assert record.kl_sampler == pytest.approx(0.193147, abs=1e-5)
    assert (record.step, record.importance_weight) == (3, 1)


@settings(max_examples=12)
@given(
    capacity=st.integers(40, 160),
    world_size=st.integers(1, 3),
    aggregation=st.sampled_from(["token_mean", "sequence_mean", "constant"]),
    objective=st.sampled_from(["dapo", "gspo", "cispo"]),
    correction=st.sampled_from(["none", "token", "sequence"]),
)
def test_micro_batches_and_world_size_change_nothing(capacity, world_size, aggregation, objective, correction) -> None:
    values = {"aggregation": aggregation, "objective": objective, "correction": correction, "max_tokens": 40}
    rows = experience(6, seed=4)
    whole = rl_config(**values, micro_batch_tokens=400)
    alone = engine_for(whole, frozen=True)
    expected = update(alone, rows, whole, 1)
    config = rl_config(**values, micro_batch_tokens=capacity)
    ranks = [engine_for(config, rank, world_size, frozen=True) for rank in range(world_size)]
    records = [update(engine, rows, config, 1) for engine in ranks]
    assert sum(record.loss for record in records) == pytest.approx(expected.loss, rel=1e-4, abs=1e-6)
    assert sum(record.entropy for record in records) == pytest.approx(expected.entropy, rel=1e-4)
    assert sum(record.kl_sampler for record in records) == pytest.approx(expected.kl_sampler, rel=1e-4)
    assert len({engine.calls.count("accumulate") for engine in ranks}) == 1
    for theirs, *mine in zip(alone.gradients[0], *[engine.gradients[0] for engine in ranks], strict=True):
        torch.testing.assert_close(sum(mine), theirs, rtol=1e-3, atol=1e-6)


def test_trl_6367_dead_groups_do_not_dilute() -> None:
    config = rl_config()
    live = experience(4)
    dead = [replace(one, group=90 + number, advantages=(0.0,) * len(one.ids)) for number, one in enumerate(live)]
    alone, mixed = engine_for(config, frozen=True), engine_for(config, frozen=True)
    expected, record = update(alone, live, config, 1), update(mixed, [*dead, *live], config, 1)
    assert record.loss == pytest.approx(expected.loss, rel=1e-5)
    assert record.model_tokens == expected.model_tokens
    for mine, theirs in zip(mixed.gradients[0], alone.gradients[0], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)


def test_a_member_without_advantage_counts_in_a_live_group() -> None:
    """Rewards 0, 1/2, 1: the middle one pulls nowhere, and the mean is still over three."""
    config = rl_config(correction="none")
    rows = [row((1, 2, 3), (0, 1, 1), advantage, name=str(advantage)) for advantage in (-1.0, 0.0, 1.0)]
    assert mini_batches(rows, config, 1) == [[0, 1, 2]]


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_trl_6369_a_truncated_trajectory_left_out_is_in_no_denominator(aggregation: str) -> None:
    config = rl_config(aggregation=aggregation)
    good = experience(2)[0]
    truncated = replace(good, id="cut", mask=(0,) * len(good.ids))
    alone, both = engine_for(config, frozen=True), engine_for(config, frozen=True)
    assert update(both, [truncated, good], config, 1).loss == update(alone, [good], config, 1).loss


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [row((1, 2, 3), (0, 0, 0), 1.0)],
        [row((1, 2, 3), (0, 1, 1), 0.0), row((1, 2), (0, 1), 0.0)],
        [row((1, 2, 3), (1, 0, 0), 1.0)],
    ],
    ids=["no rows", "nothing trained", "no advantage", "first token only"],
)
def test_trl_3248_5826_a_step_with_nothing_to_train_is_skipped(rows) -> None:
    config = rl_config(updates=2)
    engine = engine_for(config)
    record = update(engine, rows, config, 7)
    assert record == UpdateRecord(7, skipped=True)
    assert (record.loss, record.updates) == (0, 0)
    assert engine.calls == []


@pytest.mark.parametrize("place", ["advantages", "logprobs"])
def test_trl_5773_a_nan_stops_the_run_before_the_weights_are_touched(place: str) -> None:
    config = rl_config(correction="none")
    engine = engine_for(config)
    rows = experience(2)
    spoilt = replace(rows[0], **{place: tuple(math.nan if bit else 0.0 for bit in rows[0].mask)})
    with pytest.raises(TrainingFailed, match=r"loss of RL step 4, update 1 of 1 is nan.*rl\.learning_rate"):
        update(engine, [spoilt, rows[1]], config, 4)
    assert "step" not in engine.calls


def test_an_infinite_gradient_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = rl_config()
    engine = engine_for(config)
    monkeypatch.setattr(engine, "step", lambda rate: math.inf)
    with pytest.raises(TrainingFailed, match="gradient norm of RL step 2, update 1 of 1 is inf"):
        update(engine, experience(2), config, 2)


def test_the_learning_rate_warms_up_and_stays() -> None:
    config = rl_config(warmup_steps=4, learning_rate=1.0)
    engine = engine_for(config, frozen=True)
    records = [update(engine, experience(2), config, step) for step in range(1, 7)]
    assert [record.learning_rate for record in records] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert engine.rates == [record.learning_rate for record in records]
    assert update(engine, experience(2), rl_config(learning_rate=1.0), 1).learning_rate == 1


@given(st.integers(1, 8), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_mini_batches_hold_every_row_once_and_evenly(pairs: int, updates: int, step: int, seed: int) -> None:
    rows = [row((1, 2), (0, 1), 1.0 - 2 * (number % 2), group=number // 2) for number in range(2 * pairs)]
    config = rl_config(updates=updates, seed=seed)
    chosen = mini_batches(rows, config, step)
    assert sorted(index for mini in chosen for index in mini) == list(range(len(rows)))
    assert len(chosen) == min(updates, len(rows))
    assert max(map(len, chosen)) - min(map(len, chosen)) <= 1
    assert chosen == mini_batches(rows, config, step)


def test_mini_batches_differ_between_steps_and_seeds() -> None:
    rows = [row((1, 2), (0, 1), 1.0, group=number) for number in range(12)]
    plans = [mini_batches(rows, rl_config(updates=3, seed=seed), step) for seed in (0, 1) for step in (1, 2)]
    assert len({str(plan) for plan in plans}) == 4


def test_an_optimizer_step_without_an_advantage_is_not_made() -> None:
    """AdamW's momentum would move the weights although nothing was learned."""
    rows = [row((1, 2), (0, 1), 1.0), *[row((1, 2), (0, 1), 0.0) for _ in range(3)]]
    config = rl_config(updates=4)
    engine = engine_for(config)
    record = update(engine, rows, config, 1)
    assert (record.updates, record.model_tokens) == (1, 1)
    assert engine.calls.count("step") == 1


def test_old_log_probabilities_are_scored_once_before_the_first_of_several_updates() -> None:
    rows = experience(6)
    config = rl_config(updates=3, learning_rate=0.05)
    engine = engine_for(config)
    record = update(engine, rows, config, 1)
    scored, trained = engine.calls.count("score"), engine.calls.count("accumulate")
    assert scored == trained
    assert engine.calls[:scored] == ["score"] * scored
    assert engine.calls.count("step") == record.updates == 3
    # The policy has moved away from the old one, so later ratios leave their bounds; alone they cannot.
    assert record.clip_share > 0
    single = rl_config(updates=1, learning_rate=0.05)
    alone = engine_for(single)
    assert update(alone, rows, single, 1).clip_share == 0
    assert "score" not in alone.calls


def test_without_correction_the_samplers_log_probabilities_are_the_old_ones() -> None:
    config = rl_config(updates=2, correction="none")
    engine = engine_for(config)
    update(engine, experience(4), config, 1)
    assert "score" not in engine.calls


def test_a_reference_pulls_back() -> None:
    config = rl_config(kl_coefficient=0.5, correction="none")
    with pytest.raises(ValueError, match="reference"):
        update(engine_for(config), experience(2), config, 1)
    calls: list[int] = []

    def reference(batch: PolicyBatch) -> torch.Tensor:
        calls.append(len(batch.targets_S))
        return engine.score(batch) - math.log(2)

    rows = experience(4)
    engine, free = engine_for(config, frozen=True), engine_for(rl_config(correction="none"), frozen=True)
    record, plain = update(engine, rows, config, 1, reference), update(free, rows, rl_config(correction="none"), 1)
    assert sum(calls) == record.model_tokens
    # x = -log 2 at every token: 0.193147, times 0.5 in the loss.
    assert record.kl_reference == pytest.approx(0.193147, abs=1e-5)
    assert record.loss - plain.loss == pytest.approx(0.5 * 0.193147, abs=1e-5)


def test_scores_come_back_row_by_row() -> None:
    config = rl_config(temperature=0.9, micro_batch_tokens=80)
    rows = [*experience(5), row((1, 2, 3), (1, 0, 0), 0.0)]
    model = small_llama()
    scores = score(LocalEngine(model, config), rows, config)
    assert [len(values) for values in scores] == [one.supervised for one in rows]
    plain = small_llama()
    with torch.no_grad():
        for one, values in zip(rows[:-1], scores, strict=False):
            assert list(values) == pytest.approx(plain_logprobs(plain, one, 0.9)[0].tolist(), abs=1e-5)
    assert score(LocalEngine(model, config), [], config) == []


def test_every_rank_scores_a_share_and_the_sums_are_the_whole() -> None:
    config, rows = rl_config(), experience(5)
    shares = [score(engine_for(config, rank, 2), rows, config) for rank in range(2)]
    together = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(*shares, strict=True)]
    for mine, theirs in zip(together, score(engine_for(config), rows, config), strict=True):
        assert mine == pytest.approx(list(theirs), abs=1e-5)


def test_steps_count_from_one() -> None:
    with pytest.raises(AssertionError, match="from 1"):
        update(engine_for(rl_config()), [], rl_config(), 0)
