"""How specialised experts are, from counts: the official DBES definitions and corrected ones.

The official ones (arXiv 2605.18498 as implemented in its release) are kept for comparison with published numbers. They
are large for a collapsed router and for few tokens. The corrected ones compare a domain with the background (all
domains in equal parts, or one that is named so), are divided by their true maximum, lose their bias by sample size, and
come with intervals by document.

Arrays: counts [..., D, L, E] of selections (domains, layers, experts); every figure keeps the leading axes.
Logarithms are natural unless said otherwise; Jensen-Shannon divergence is in bits, so that its maximum is 1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""counts [..., D, L, E] -> figures [..., M]."""

_HALVES = 32
_RESAMPLES = 400


def shares(counts: NDArray[np.generic]) -> Floats:
    """P[..., l, e] = N[l, e] / sum_e N[l, e]; a layer without tokens gets equal shares."""
    values = np.asarray(counts, np.float64)
    total = values.sum(-1, keepdims=True)
    return np.where(total > 0, values / np.where(total > 0, total, 1.0), 1.0 / values.shape[-1])


def entropy(probabilities: Floats) -> Floats:
    """H over the last axis, in nats."""
    return -np.sum(probabilities * np.log(np.where(probabilities > 0, probabilities, 1.0)), axis=-1)


def divergence(left: Floats, right: Floats) -> Floats:
    """KL(left || right) over the last axis, in nats. What `left` has and `right` lacks is impossible here: the
    background holds every domain; such entries are counted against a share of 1e-12."""
    ratio = np.where(left > 0, left / np.maximum(right, 1e-12), 1.0)
    return np.asarray(np.sum(left * np.log(ratio), axis=-1))


def jensen_shannon(left: Floats, right: Floats) -> Floats:
    """JS divergence over the last axis, in bits: H((p + q) / 2) - (H(p) + H(q)) / 2."""
    return (entropy((left + right) / 2) - (entropy(left) + entropy(right)) / 2) / np.log(2)


def official_specialization(counts: Floats) -> Floats:
    """RS_d = mean_l (ln E - H(P_d[l])), nats; [..., D]."""
    probabilities = shares(counts)
    return np.asarray((np.log(counts.shape[-1]) - entropy(probabilities)).mean(-1))


def official_effective_rank(counts: Floats) -> Floats:
    """NER_d = (sum sigma)^2 / sum sigma^2 / min(L, E), sigma: singular values of P_d [L, E]; [..., D]."""
    sigma = np.linalg.svd(shares(counts), compute_uv=False)
    return np.asarray(sigma.sum(-1) ** 2 / np.maximum((sigma**2).sum(-1), 1e-300) / min(counts.shape[-2:]))


def official_isolation(counts: Floats) -> Floats:
    """DI_d = 1 - mean over the other domains of the cosine of P_d and P_d', flattened; [..., D]."""
    flat = shares(counts).reshape(*counts.shape[:-2], -1)
    flat = flat / np.linalg.norm(flat, axis=-1, keepdims=True)
    cosines = flat @ np.swapaxes(flat, -1, -2)
    domains = counts.shape[-3]
    return np.asarray(1 - (cosines.sum(-1) - 1) / max(1, domains - 1))


def background_of(probabilities: Floats, background: int | None) -> Floats:
    """[..., 1, L, E]: the named domain's shares, or the mean of all domains (each in equal parts)."""
    if background is not None:
        return np.asarray(probabilities[..., background : background + 1, :, :])
    return np.asarray(probabilities.mean(-3, keepdims=True))


def specialization(background: int | None) -> Statistic:
    """RS*_d = mean_l KL(r_d[l] || r_bg[l]) / ln D, [..., D]: with D domains in the background its maximum is 1.

    Against a named background it stays in nats: that divergence has no maximum.
    """

    def statistic(counts: Floats) -> Floats:
        probabilities = shares(counts)
        values = divergence(probabilities, background_of(probabilities, background)).mean(-1)
        return values if background is not None else values / np.log(max(2, counts.shape[-3]))

    return statistic


def information(counts: Floats) -> Floats:
    """I(expert; domain) of each layer over its maximum ln D, [..., L]: the generalised JS divergence of the r_d."""
    probabilities = shares(counts)
    gained = entropy(probabilities.mean(-3)) - entropy(probabilities).mean(-2)
    return np.asarray(gained / np.log(max(2, counts.shape[-3])))


def pairwise(counts: Floats) -> Floats:
    """JS divergence of every pair of domains, mean over layers, [..., D * D] in bits."""
    probabilities = shares(counts)
    pairs = jensen_shannon(probabilities[..., :, None, :, :], probabilities[..., None, :, :, :]).mean(-1)
    return np.asarray(pairs.reshape(*pairs.shape[:-2], -1))


def load(top_k: int) -> Statistic:
    """KL(r_d[l] || uniform) / ln(E / k), mean over layers, [..., D]: 0 balanced, 1 always the same k experts.

    k different experts a token keep every share below 1 / k, so that ln(E / k) is the true maximum.
    """

    def statistic(counts: Floats) -> Floats:
        experts = counts.shape[-1]
        uneven = (np.log(experts) - entropy(shares(counts))).mean(-1)
        return np.asarray(uneven / np.log(experts / top_k) if experts > top_k else np.zeros_like(uneven))

    return statistic


@dataclass(frozen=True)
class Estimates:
    """Figures [M] without sample-size bias, and their 95% intervals by document (nan: one document a domain)."""

    values: Floats
    low: Floats
    high: Floats
    plain: Floats
    """The same figures as they come from the counts, bias included."""


def estimate(statistic: Statistic, blocks: list[NDArray[np.int64]], seed: int = 0) -> Estimates:
    """A figure of domains whose counts are kept by block of documents (each [G_d, L, E]).

    The bias of such a figure falls with 1 / documents, so that twice the full value minus the mean over random halves
    of the documents has none to first order: a random router gets 0 at any number of tokens. The interval is the
    bootstrap's over documents, moved to that value: resampling itself adds the bias once more.
    """
    generator = np.random.default_rng(seed)
    full = statistic(np.stack([one.sum(0) for one in blocks]).astype(np.float64))
    if min(len(one) for one in blocks) < 2:
        unknown = np.full_like(full, np.nan)
        return Estimates(full, unknown, unknown, full)
    halves = np.stack([statistic(half) for pair in _halves(blocks, generator) for half in pair])
    value = 2 * full - halves.mean(0)
    drawn = np.stack([statistic(_resampled(blocks, generator)) for _ in range(_RESAMPLES)])
    low, high = np.quantile(drawn - drawn.mean(0), [0.025, 0.975], axis=0)
    return Estimates(value, value + low, value + high, full)


def _halves(blocks: list[NDArray[np.int64]], generator: np.random.Generator) -> list[tuple[Floats, Floats]]:
    pairs = []
    for _ in range(_HALVES):
        orders = [generator.permutation(len(one)) for one in blocks]
        firsts = [one[order[: len(one) // 2]].sum(0) for one, order in zip(blocks, orders, strict=True)]
        wholes = [one.sum(0) for one in blocks]
        seconds = [whole - first for whole, first in zip(wholes, firsts, strict=True)]
        pairs.append((np.stack(firsts).astype(np.float64), np.stack(seconds).astype(np.float64)))
    return pairs


def _resampled(blocks: list[NDArray[np.int64]], generator: np.random.Generator) -> Floats:
    drawn = []
    for one in blocks:
        weights = generator.multinomial(len(one), np.full(len(one), 1 / len(one)))
        drawn.append(np.tensordot(weights.astype(np.float64), one, axes=(0, 0)))
    return np.stack(drawn)


def isolation(blocks: list[NDArray[np.int64]], seed: int = 0) -> Estimates:
    """DI*_d = mean over the other domains of sqrt(JS) (bits, mean over layers inside the root), [D].

    The divergences lose their sample-size bias before the root is taken: two samples of one domain are at 0.
    """
    domains = len(blocks)
    others = ~np.eye(domains, dtype=bool)

    def distance(values: Floats) -> Floats:
        roots = np.sqrt(np.clip(values.reshape(domains, domains), 0, None))
        return np.asarray((roots * others).sum(-1) / max(1, domains - 1))

    pairs = estimate(pairwise, blocks, seed)
    return Estimates(*(distance(one) for one in (pairs.values, pairs.low, pairs.high, pairs.plain)))


def effective_rank(blocks: list[NDArray[np.int64]], background: int | None, seed: int = 0) -> tuple[Floats, Floats]:
    """NER*_d and the share of energy that is no noise, both [D].

    Roy and Vetterli's effective rank exp(H(sigma / sum sigma)) of r_d - r_bg [L, E] over min(L, E), after the singular
    values have lost what the same matrix of pure sampling noise has: half the difference of two random halves of the
    documents is exactly such noise. 0: no direction stands out of the noise; with one document a domain the noise is
    not known (nan) and nothing is taken off.
    """
    generator = np.random.default_rng(seed)

    def departures(counts: Floats) -> Floats:
        probabilities = shares(counts)
        return probabilities - background_of(probabilities, background)

    sigma = np.linalg.svd(departures(np.stack([one.sum(0) for one in blocks]).astype(np.float64)), compute_uv=False)
    noise = np.zeros_like(sigma)
    known = min(len(one) for one in blocks) > 1
    if known:
        pairs = _halves(blocks, generator)
        noise = np.mean(
            [
                np.linalg.svd((departures(first) - departures(second)) / 2, compute_uv=False) ** 2
                for first, second in pairs
            ],
            axis=0,
        )
    energy = np.clip(sigma**2 - noise, 0, None)
    kept = np.sqrt(energy)
    parts = kept / np.maximum(kept.sum(-1, keepdims=True), 1e-300)
    rank = np.where(kept.sum(-1) > 0, np.exp(entropy(parts)), 0.0)
    shape = blocks[0].shape[-2:]
    total = (sigma**2).sum(-1)
    signal = np.where(total > 0, energy.sum(-1) / np.maximum(total, 1e-300), 0.0)
    return rank / min(shape), signal if known else np.full_like(signal, np.nan)
