"""Choosing the next tokens of a batch, one random stream a request.

Temperature T > 0 samples from softmax(logits / T) and reports the log-probability under that same distribution;
temperature 0 takes the largest logit and reports its log-probability at T = 1. Each request draws one uniform number
a token from its own generator and inverts the cumulative distribution, so that who shares the batch cannot change a
sample (but for float rounding of the logits themselves).
"""

from collections.abc import Sequence

import torch


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
    scale = torch.tensor([t if t > 0 else 1.0 for t in temperatures], dtype=torch.float32, device=logits.device)
    scaled = logits.float() / scale[:, None]
    chosen = scaled.argmax(dim=-1)
    normalizer = torch.logsumexp(scaled, dim=-1)
    drawn = [row for row, temperature in enumerate(temperatures) if temperature > 0]
    if drawn:
        weights = torch.exp(scaled[drawn] - normalizer[drawn, None])
        cumulative = torch.cumsum(weights, dim=-1, dtype=torch.float64)
        uniforms = torch.tensor([streams[row].uniform() for row in drawn], dtype=torch.float64, device=logits.device)
        target = uniforms * cumulative[:, -1]
        index = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
        # Rounding may carry the target to the total: then the last token with any weight is meant.
        last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous(), right=False)[:, 0]
        chosen[drawn] = torch.minimum(index, last).clamp_(max=logits.shape[1] - 1)
    logprobs = scaled.gather(1, chosen[:, None])[:, 0] - normalizer
    return chosen.tolist(), logprobs.tolist()
