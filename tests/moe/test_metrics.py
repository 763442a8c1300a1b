"""Planted routers have their closed-form figures; a random one is at its chance level at any number of tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from planted import planted, random_indices

from afm_core.moe import metrics, sequences

EXPERTS, LAYERS = 8, 3


def blocks(*indices: NDArray[np.int16], experts: int = EXPERTS) -> list[NDArray[np.int64]]:
    return [planted("a", one, experts).counts for one in indices]


def totals(*indices: NDArray[np.int16], experts: int = EXPERTS) -> NDArray[np.float64]:
    return np.stack([one.sum(0) for one in blocks(*indices, experts=experts)]).astype(np.float64)


def constant(*chosen: int, tokens: int = 640) -> NDArray[np.int16]:
    """Every token chooses these experts in every layer."""
    return np.tile(np.array(chosen, np.int16), (tokens, LAYERS, 1))


def turns(experts: list[int], tokens: int = 640) -> NDArray[np.int16]:
    """Tokens choose one expert each, in turn: exactly uniform over them."""
    return np.tile(np.array(experts, np.int16)[np.arange(tokens) % len(experts)][:, None, None], (1, LAYERS, 1))


def test_a_uniform_router_is_at_zero() -> None:
    uniform = turns(list(range(8)), tokens=1024)
    assert metrics.official_specialization(totals(uniform)) == pytest.approx(0, abs=1e-12)
    assert metrics.load(1)(totals(uniform)) == pytest.approx(0, abs=1e-12)
    estimates = metrics.estimate(metrics.specialization(None), blocks(uniform, uniform))
    assert estimates.values == pytest.approx([0, 0], abs=1e-9)


def test_a_collapsed_router_is_loaded_but_not_specialised() -> None:
    collapsed = totals(constant(3, 5), constant(3, 5))
    assert metrics.official_specialization(collapsed) == pytest.approx([np.log(8 / 2)] * 2)
    assert metrics.load(2)(collapsed) == pytest.approx([1, 1]), "ln(E / k) is the maximum with k distinct experts"
    assert metrics.specialization(None)(collapsed) == pytest.approx([0, 0])
    assert metrics.information(collapsed) == pytest.approx([0] * LAYERS)
    assert metrics.official_isolation(collapsed) == pytest.approx([0, 0])


def test_a_router_that_splits_domains_perfectly_is_at_one() -> None:
    split = [turns([0, 1, 2, 3]), turns([4, 5, 6, 7])]
    assert metrics.specialization(None)(totals(*split)) == pytest.approx([1, 1])
    assert metrics.information(totals(*split)) == pytest.approx([1] * LAYERS)
    assert metrics.official_isolation(totals(*split)) == pytest.approx([1, 1])
    assert metrics.official_specialization(totals(*split)) == pytest.approx([np.log(2)] * 2)
    assert metrics.isolation(blocks(*split)).values == pytest.approx([1, 1])
    for figures in (metrics.estimate(metrics.specialization(None), blocks(*split)), metrics.isolation(blocks(*split))):
        assert figures.low == pytest.approx(figures.values, abs=1e-6)


def test_shared_and_specialised_experts() -> None:
    """Half of each domain's load goes to expert 0, the other half to one of its own."""
    figures = totals(turns([0, 1]), turns([0, 2]))
    assert metrics.specialization(None)(figures) == pytest.approx([0.5, 0.5])
    assert metrics.jensen_shannon(*metrics.shares(figures)).mean() == pytest.approx(0.5)
    assert metrics.official_isolation(figures) == pytest.approx([0.5, 0.5])


def test_official_effective_rank_of_a_rank_one_and_a_full_matrix() -> None:
    same = totals(turns([0, 1]))
    assert metrics.official_effective_rank(same) == pytest.approx(1 / LAYERS)
    layers = np.zeros((1, LAYERS, EXPERTS))
    layers[0, range(LAYERS), range(LAYERS)] = 10
    assert metrics.official_effective_rank(layers) == pytest.approx(1)


def test_effective_rank_counts_the_directions_that_differ_from_the_background() -> None:
    one_direction = [turns([0, 1]), turns([2, 3])]
    rank, signal = metrics.effective_rank(blocks(*one_direction), None)
    assert rank == pytest.approx([1 / LAYERS] * 2, abs=1e-6)
    assert signal == pytest.approx([1, 1])
    assert metrics.effective_rank(blocks(turns([0, 1]), turns([0, 1])), None)[0] == pytest.approx([0, 0])


@pytest.mark.parametrize("tokens", [512, 4096])
def test_a_random_router_is_near_zero_at_any_number_of_tokens(tokens: int) -> None:
    """500 tokens of a random router with 128 experts have an official RS of 0.016 and DI of 0.03: bias alone."""
    domains = blocks(*(random_indices(tokens, 4, 64, 4, seed) for seed in range(3)), experts=64)
    plain = np.stack([one.sum(0) for one in domains]).astype(np.float64)
    estimates = metrics.estimate(metrics.specialization(None), domains)
    assert np.abs(estimates.values).max() < 0.15 * estimates.plain.min()
    assert (estimates.low < 0).all()
    assert (estimates.high > 0).all()
    info = metrics.estimate(metrics.information, domains)
    assert np.abs(info.values).max() < 0.4 * info.plain.min()
    pairs = metrics.estimate(metrics.pairwise, domains).values.reshape(3, 3)
    assert np.abs(pairs).max() < 0.2 * metrics.pairwise(plain).reshape(3, 3)[0, 1]
    _, signal = metrics.effective_rank(domains, None)
    assert signal.max() < 0.35


def test_one_document_has_no_interval() -> None:
    estimates = metrics.estimate(
        metrics.specialization(None), [planted(name, turns([0, 1]), EXPERTS, documents=1).counts for name in "ab"]
    )
    assert np.isnan(estimates.low).all()


def test_a_named_background_leaves_nats() -> None:
    figures = totals(turns(list(range(8))), turns([0, 1]))
    assert metrics.specialization(0)(figures) == pytest.approx([0, np.log(4)])


@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=2, max_size=4))
@settings(max_examples=60, deadline=None)
def test_figures_stay_within_their_bounds(rows: list[list[int]]) -> None:
    counts = np.array(rows, np.float64)[:, None, :]
    information = metrics.information(counts)
    assert (information >= -1e-9).all()
    assert (information <= 1 + 1e-9).all()
    pairs = metrics.pairwise(counts)
    assert (pairs >= -1e-9).all()
    assert (pairs <= 1 + 1e-9).all()
    assert metrics.specialization(None)(counts).mean() == pytest.approx(information.mean(), abs=1e-6)


def test_same_expert_windows_and_their_chance() -> None:
    runs = np.repeat(np.arange(64) % 8, 10).astype(np.int16)  # ten tokens of one expert, then of the next
    sample = planted("a", np.tile(runs[:, None, None], (1, LAYERS, 1)), EXPERTS, documents=1).sample
    found = sequences.same_expert(sample, 2)
    assert found.ratio == pytest.approx(576 / 639)
    assert found.chance == pytest.approx(8 * 80 * 79 / (640 * 639))
    assert sequences.same_expert(sample, 10).ratio == pytest.approx(64 / 631)
    assert np.isnan(found.low), "one document has no interval"
    assert np.isnan(sequences.same_expert(sample, 10_000).ratio), "no document has so many tokens"


def test_windows_do_not_cross_documents() -> None:
    changing = np.repeat(np.arange(32) % 8, 20).astype(np.int16)
    sample = planted("a", np.tile(changing[:, None, None], (1, 1, 1)), EXPERTS, documents=32).sample
    assert sequences.same_expert(sample, 20).ratio == 1.0


@pytest.mark.parametrize("n", [2, 5])
def test_a_random_router_has_no_excess_of_ngrams(n: int) -> None:
    sample = planted("a", random_indices(4096, 2, 8, 2, 0), EXPERTS).sample
    found = sequences.same_expert(sample, n)
    assert found.low <= 0 <= found.high or abs(found.excess) < 0.01
    groups = sequences.expert_groups(np.tile([5, 4, 3, 2, 1, 1, 1, 1.0], (2, 1)), 0.6)
    assert [group.tolist() for group in groups] == [[0, 1, 2]] * 2
    inside = sequences.inside_group(sample, groups, n)
    assert inside.chance == pytest.approx((3 / 8) ** n, rel=0.2)
    assert abs(inside.excess) < 0.02
    assert sequences.routing_ratio(sample, groups) == pytest.approx(3 / 8, abs=0.03)


def test_coselection_and_transitions_of_a_planted_chain() -> None:
    chain = np.zeros((100, 2, 2), np.int16)
    chain[:50, 0], chain[50:, 0] = [0, 1], [2, 3]
    chain[:50, 1], chain[50:, 1] = [4, 5], [6, 7]
    sample = planted("a", chain, EXPERTS).sample
    together = sequences.coselection(sample, EXPERTS)
    assert (together[0, 0, 1], together[0, 0, 2]) == (1.0, 0.0)
    lift = sequences.transitions(sample, EXPERTS)
    assert (lift[0, 0, 4], lift[0, 0, 6], lift[0, 7, 0]) == (2.0, 0.0, 0.0)


def test_vocabulary_specialization_is_one_for_a_router_that_reads_the_token_alone() -> None:
    ids = np.arange(800) % 8
    sample = planted("a", ids[:, None, None].astype(np.int16), EXPERTS, ids=ids).sample
    value, chance = sequences.vocabulary_specialization(sample, EXPERTS)
    assert value == pytest.approx(1)
    assert chance < 0.1


def test_a_difference_of_vocabulary_is_none_within_the_shared_vocabulary() -> None:
    """Token x always goes to expert x; the domains use different tokens, but share token 0."""
    generator = np.random.default_rng(0)
    ids = [generator.choice([0, 1, 2], 900), generator.choice([0, 3, 4], 900)]
    samples = [planted("a", one[:, None, None].astype(np.int16), EXPERTS, ids=one).sample for one in ids]
    apart = totals(*(one[:, None, None].astype(np.int16) for one in ids))
    assert metrics.pairwise(apart).reshape(2, 2)[0, 1] > 0.6
    matched = sequences.shared_vocabulary(*samples, EXPERTS)
    sums = [one.sum(0) for one in matched]
    assert np.array_equal(*sums)
    assert sums[0].sum() == sums[0][0, 0] == min((one == 0).sum() for one in ids)
