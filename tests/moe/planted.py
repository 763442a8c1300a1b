"""Routers whose figures are known: what they choose is planted, no model runs."""

import numpy as np
from numpy.typing import NDArray

from afm_core.moe.recording import BLOCKS, DomainRouting, RoutingSample


def planted(
    name: str, indices: NDArray[np.int16], experts: int, documents: int = 32, ids: NDArray[np.int64] | None = None
) -> DomainRouting:
    """The record of T tokens in equally long documents, all with equal weights."""
    tokens, layers, top_k = indices.shape
    numbers = np.arange(tokens) * documents // tokens
    counts = np.zeros((min(documents, BLOCKS), layers, experts), np.int64)
    for layer in range(layers):
        np.add.at(counts[:, layer], (numbers[:, None] % BLOCKS, indices[:, layer]), 1)
    weights = np.full(indices.shape, 1 / top_k, np.float32)
    weights[..., 0] += 0.01
    sample = RoutingSample(
        np.arange(tokens) % 50 if ids is None else ids,
        numbers,
        indices.astype(np.int16),
        weights,
        np.zeros((tokens, layers), np.float32),
        np.ones((tokens, layers), np.bool_),
    )
    return DomainRouting(
        name, documents, np.bincount(numbers % BLOCKS), counts, counts.astype(np.float64) / top_k, sample
    )


def random_indices(tokens: int, layers: int, experts: int, top_k: int, seed: int) -> NDArray[np.int16]:
    """Every token chooses k different experts with equal chances."""
    generator = np.random.default_rng(seed)
    return generator.random((tokens, layers, experts)).argsort(-1)[..., :top_k].astype(np.int16)
