"""Figures of a routing sample: n-gram expertise, router stiffness, co-selection, vocabulary, transitions.

They need the order of tokens or pairs of experts, so they are computed from the bounded sample. What the official
n-gram ratio reports is mostly chance when few experts carry the load: here every ratio stands beside what the same
tokens give in random order (exact, no sampling), and the excess over it.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from afm_core.moe.recording import BLOCKS, RoutingSample

Floats = NDArray[np.float64]

GROUP_SHARE = 0.85
"""An expert group: the fewest experts with this share of a layer's routing weight."""

_RESAMPLES = 400


@dataclass(frozen=True)
class Ngram:
    """N-gram expertise for one n, mean over layers. ratio: windows of n tokens with one expert (or inside the group).

    chance: the same tokens in random order; excess = (ratio - chance) / (1 - chance), with a 95% interval by document.
    """

    n: int
    ratio: float
    chance: float
    excess: float
    low: float
    high: float


def same_expert(sample: RoutingSample, n: int, seed: int = 0) -> Ngram:
    """Windows of n tokens of a document that all have the same primary expert."""

    def chance(primary: NDArray[np.int16], layer: int) -> float:
        return sum(_all_among(int(count), len(primary), n) for count in np.bincount(primary))

    def hits(primary: NDArray[np.int16], layer: int) -> NDArray[np.bool_]:
        return np.asarray(primary[1:] == primary[:-1])

    return _ngram(sample, n, hits, n - 1, chance, seed)


def inside_group(sample: RoutingSample, groups: Sequence[NDArray[np.int64]], n: int, seed: int = 0) -> Ngram:
    """Windows of n tokens of a document whose primary experts all belong to the layer's group."""

    def chance(primary: NDArray[np.int16], layer: int) -> float:
        return _all_among(int(np.isin(primary, groups[layer]).sum()), len(primary), n)

    def hits(primary: NDArray[np.int16], layer: int) -> NDArray[np.bool_]:
        return np.isin(primary, groups[layer])

    return _ngram(sample, n, hits, n, chance, seed)


def expert_groups(gates: Floats, share: float = GROUP_SHARE) -> list[NDArray[np.int64]]:
    """For each layer of gates [L, E]: the fewest experts whose weights sum to `share` of the layer's."""
    groups = []
    for row in gates:
        order = np.argsort(-row, kind="stable")
        mass = np.cumsum(row[order]) / max(float(row.sum()), 1e-300)
        groups.append(np.sort(order[: int(np.searchsorted(mass, share - 1e-12)) + 1]))
    return groups


def routing_ratio(sample: RoutingSample, groups: Sequence[NDArray[np.int64]]) -> float:
    """Share of tokens whose primary expert is in the group, mean over layers."""
    primary = sample.primary
    return float(np.mean([np.isin(primary[:, layer], group).mean() for layer, group in enumerate(groups)]))


def coselection(sample: RoutingSample, experts: int) -> Floats:
    """[L, E, E]: of the tokens that chose expert i, the share that chose j too (OLMoE's co-activation); 0 on i = j."""
    result = np.zeros((sample.indices.shape[1], experts, experts))
    for layer in range(len(result)):
        chosen = _one_hot(sample.indices[:, layer], experts)
        pairs = chosen.T @ chosen
        result[layer] = pairs / np.maximum(np.diag(pairs)[:, None], 1)
        np.fill_diagonal(result[layer], 0)
    return result


def transitions(sample: RoutingSample, experts: int) -> Floats:
    """[L - 1, E, E]: lift of choosing j in the next mixture layer given i in this one, over independence (1)."""
    chosen = [_one_hot(sample.indices[:, layer], experts) for layer in range(sample.indices.shape[1])]
    tokens = len(sample.token_ids)
    result = np.zeros((max(0, len(chosen) - 1), experts, experts))
    for place, (here, there) in enumerate(itertools.pairwise(chosen)):
        expected = np.outer(here.sum(0), there.sum(0)) / max(1, tokens)
        result[place] = np.where(expected > 0, (here.T @ there) / np.where(expected > 0, expected, 1), 0.0)
    return result


def vocabulary_specialization(sample: RoutingSample, experts: int, seed: int = 0) -> tuple[float, float]:
    """Mean over layers of I(token; expert) / ln(E / k), and the same with the tokens shuffled (its chance level).

    The joint distribution is that of token ids and chosen experts. Near 1: the router reads nothing but the token.
    """
    _, ids = np.unique(sample.token_ids, return_inverse=True)
    shuffled = np.random.default_rng(seed).permutation(ids)
    top_k = sample.indices.shape[-1]
    most = np.log(experts / top_k) if experts > top_k else 1.0
    figures = []
    for order in (ids, shuffled):
        gained = [_information(order, sample.indices[:, layer], experts) for layer in range(sample.indices.shape[1])]
        figures.append(float(np.mean(gained) / most))
    return figures[0], figures[1]


def shared_vocabulary(left: RoutingSample, right: RoutingSample, experts: int) -> list[NDArray[np.int64]]:
    """Counts by block [G, L, E] of two domains on equally many occurrences of each token that both have.

    What still differs then is no matter of which tokens a domain uses.
    """
    occurrences = [_occurrence(one.token_ids) for one in (left, right)]
    largest = int(max(left.token_ids.max(), right.token_ids.max())) + 1
    both = np.minimum(*(np.bincount(one.token_ids, minlength=largest) for one in (left, right)))
    blocks = []
    for sample, number in zip((left, right), occurrences, strict=True):
        kept = number < both[sample.token_ids]
        used = sample.documents[kept] % BLOCKS
        counts = np.zeros((BLOCKS, sample.indices.shape[1], experts), np.int64)
        for layer in range(counts.shape[1]):
            np.add.at(counts[:, layer], (used[:, None], sample.indices[kept, layer]), 1)
        blocks.append(counts[np.unique(used)] if len(used) else counts[:1])
    return blocks


def _ngram(
    sample: RoutingSample,
    n: int,
    hits: Callable[[NDArray[np.int16], int], NDArray[np.bool_]],
    needed: int,
    chance: Callable[[NDArray[np.int16], int], float],
    seed: int,
) -> Ngram:
    """Ratio over documents: sums of hits, of chances and of windows, a document each; then a bootstrap over them."""
    rows: list[tuple[int, int, float, int]] = []
    for primary in _documents(sample):
        windows = len(primary) - n + 1
        if windows < 1:
            continue
        for layer in range(primary.shape[1]):
            run = np.concatenate([[0], np.cumsum(hits(primary[:, layer], layer))])
            full = int((run[needed:] - run[: len(run) - needed] == needed).sum())
            rows.append((len(rows) // primary.shape[1], full, windows * chance(primary[:, layer], layer), windows))
    if not rows:
        return Ngram(n, *(float("nan"),) * 5)
    table = np.array(rows, np.float64)
    sums = np.zeros((int(table[-1, 0]) + 1, 3))
    np.add.at(sums, table[:, 0].astype(int), table[:, 1:])
    found, expected = sums[:, 0].sum() / sums[:, 2].sum(), sums[:, 1].sum() / sums[:, 2].sum()
    low = high = float("nan")
    if len(sums) > 1:
        generator = np.random.default_rng(seed)
        drawn = generator.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=_RESAMPLES) @ sums
        low, high = np.quantile(_excess(drawn[:, 0] / drawn[:, 2], drawn[:, 1] / drawn[:, 2]), [0.025, 0.975])
    return Ngram(n, float(found), float(expected), float(_excess(found, expected)), float(low), float(high))


def _excess(found: Floats, expected: Floats) -> Floats:
    return np.asarray((found - expected) / np.maximum(1 - expected, 1e-12))


def _all_among(members: int, total: int, n: int) -> float:
    """Probability that n tokens drawn without replacement from `total` are all among `members`."""
    if members < n:
        return 0.0
    steps = np.arange(n)
    return float(np.prod((members - steps) / (total - steps)))


def _documents(sample: RoutingSample) -> Iterator[NDArray[np.int16]]:
    borders = np.flatnonzero(np.diff(sample.documents)) + 1
    yield from np.split(sample.primary, borders)


def _one_hot(indices: NDArray[np.int16], experts: int) -> Floats:
    result = np.zeros((len(indices), experts))
    result[np.arange(len(indices))[:, None], indices] = 1
    return result


def _information(ids: NDArray[np.int64], indices: NDArray[np.int16], experts: int) -> float:
    pairs, number = np.unique(ids[:, None] * experts + indices, return_counts=True)
    joint = number / number.sum()
    tokens = np.bincount(pairs // experts, weights=joint)
    chosen = np.bincount(pairs % experts, weights=joint, minlength=experts)
    return float(np.sum(joint * np.log(joint / (tokens[pairs // experts] * chosen[pairs % experts]))))


def _occurrence(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each token, how many of the same id came before it."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    number = np.arange(len(ids)) - np.repeat(starts, np.diff(np.append(starts, len(ids))))
    result = np.empty(len(ids), np.int64)
    result[order] = number
    return result
