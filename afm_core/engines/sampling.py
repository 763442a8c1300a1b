"""Choosing the next tokens of a batch, one random stream a request.

Temperature T > 0 samples from softmax(logits / T) and reports the log-probability under that same distribution;
temperature 0 takes the largest logit and reports its log-probability at T = 1. Each request draws one uniform number
a token from its own generator and inverts the cumulative distribution, so that who shares the batch cannot change a
sample (but for float rounding of the logits themselves).
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

_BLOCK = 256


class TokenStream:
    """The randomness of one request."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)

    def uniform(self) -> float:
        """A number in [0, 1)."""
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))


def sample(
    logits: torch.Tensor, temperatures: Sequence[float], streams: Sequence[TokenStream]
) -> tuple[list[int], list[float]]:
    """logits (rows, vocabulary) -> a token id and its log-probability for each row.

    A row whose logits are not finite gives a log-probability that is not finite; the caller reports it.
    """
    scores = logits.float()
    if any(temperature not in (0, 1) for temperature in temperatures):
        scale = torch.tensor([t if t > 0 else 1.0 for t in temperatures], dtype=torch.float32, device=logits.device)
        scores = scores / scale[:, None]
    peak, chosen = scores.max(dim=-1)
    weights = (scores - peak[:, None]).exp_()
    drawn = [row for row, temperature in enumerate(temperatures) if temperature > 0]
    if drawn:
        uniforms = torch.tensor([streams[row].uniform() for row in drawn], dtype=torch.float64, device=logits.device)
        chosen[drawn] = _invert(weights if len(drawn) == len(weights) else weights[drawn], uniforms)
    logprobs = scores.gather(1, chosen[:, None])[:, 0] - peak - weights.sum(dim=-1).log()
    return chosen.tolist(), logprobs.tolist()


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Where the cumulative sum of each row of weights (rows, vocabulary) passes its uniform share of the total.

    In two levels, blocks and then inside one block: cheaper than a cumulative sum over the vocabulary.
    """
    missing = -weights.shape[1] % _BLOCK
    blocks = (pad(weights, (0, missing)) if missing else weights).view(len(weights), -1, _BLOCK)
    totals = blocks.sum(dim=-1).double().cumsum(dim=-1)
    target = uniforms * totals[:, -1]
    block = _first_above(totals, target)
    rows = torch.arange(len(weights), device=weights.device)
    before = torch.where(block > 0, totals[rows, (block - 1).clamp(min=0)], 0.0)
    inside = blocks[rows, block].double().cumsum(dim=-1)
    index = block * _BLOCK + _first_above(inside, target - before)
    return index.clamp_(max=weights.shape[1] - 1)


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Index of the first entry of each row above its target; rounding never leads past the last that has weight."""
    index = torch.searchsorted(cumulative, target[:, None].contiguous(), right=True)[:, 0]
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous(), right=False)[:, 0]
    return torch.minimum(index, last).clamp_(max=cumulative.shape[1] - 1)
