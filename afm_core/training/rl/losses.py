"""Policy losses, token by token: pure functions of tensors, nothing is averaged here.

Every function takes the supervised tokens of whole trajectories, one after the other, and gives a loss a token; how
much a token counts is a weight of its own (`aggregation_weights`) that is made from counts of the whole update, so
that the update's loss is a weighted *sum*: how tokens are spread over micro-batches and ranks cannot change it.

Log-ratios are limited to [-20, 20] (MAXIMUM_LOG_RATIO) before the exponential, so that e^x stays finite in fp32 (the
largest ratio is 4.9e8). Beyond the limit a ratio is constant: the token has no gradient through it. Every clip bound
and every cap that makes sense lies far inside.

Shape suffixes: S supervised tokens; rows_S is the index of the trajectory that a token belongs to; R trajectories.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from afm_core.config import Aggregation, Correction

MAXIMUM_LOG_RATIO = 20.0
"""As in verl's clipped loss. verl limits GSPO's ratio to e^10 and a k3 estimate to 10 as well; we do not."""


@dataclass(frozen=True)
class TokenLosses:
    """loss_S: to be minimised. clipped_S: 1.0 where a bound took the place of the ratio, else 0.0; a figure only."""

    loss_S: Tensor
    clipped_S: Tensor


def dapo(
    logprobs_S: Tensor,
    old_S: Tensor,
    advantages_S: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> TokenLosses:
    """Clipped ratio with a looser upper bound (DAPO, arXiv 2503.14476) and dual clip (arXiv 1912.09729).

    max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) with r = exp(logprobs - old); for negative advantages no more
    than -A dual_clip, so that one token that became likely cannot outweigh the batch.
    """
    return _clipped(torch.exp(_limited(logprobs_S - old_S)), advantages_S, clip_low, clip_high, dual_clip)


def gspo(
    logprobs_S: Tensor, old_S: Tensor, advantages_S: Tensor, rows_S: Tensor, clip_low: float, clip_high: float
) -> TokenLosses:
    """One ratio a trajectory: s = exp(mean of its tokens' log-ratios), clipped as a whole (GSPO, arXiv 2507.18071).

    In the paper's token form, s_t = sg[s] exp(logprob_t - sg[logprob_t]): its value is s everywhere, and the mean over
    a trajectory's tokens has the gradient of s A. There is no dual clip. Trajectories must be whole.
    """
    log_ratios_S = (logprobs_S - old_S).detach()
    sums_R, counts_R = _sums(log_ratios_S, rows_S), _sums(torch.ones_like(log_ratios_S), rows_S)
    means_S = _limited(sums_R / counts_R.clamp(min=1.0))[rows_S]
    return _clipped(torch.exp(means_S + logprobs_S - logprobs_S.detach()), advantages_S, clip_low, clip_high, None)


def cispo(logprobs_S: Tensor, old_S: Tensor, advantages_S: Tensor, clip_low: float, clip_high: float) -> TokenLosses:
    """-sg[clip(r, 1 - clip_low, 1 + clip_high)] A logprob: no token loses its gradient (CISPO, arXiv 2506.13585).

    The paper gives the ratio no lower bound: clip_low = 1 is that.
    """
    ratios_S = torch.exp(_limited(logprobs_S - old_S)).detach()
    bounded_S = ratios_S.clamp(1.0 - clip_low, 1.0 + clip_high)
    return TokenLosses(-bounded_S * advantages_S * logprobs_S, (ratios_S != bounded_S).float())


def k3(logprobs_S: Tensor, reference_S: Tensor) -> Tensor:
    """Schulman's estimator of KL(policy || reference) from tokens that the policy sampled: e^x - x - 1 >= 0 with
    x = reference - logprobs. (joschu.net/blog/kl-approx.html)
    """
    difference_S = _limited(reference_S - logprobs_S)
    return torch.exp(difference_S) - difference_S - 1.0


def importance_weights(old_S: Tensor, sampler_S: Tensor, rows_S: Tensor, correction: Correction, cap: float) -> Tensor:
    """What a token's loss is multiplied by, because the sampler's policy is not quite the trainer's; no gradient.

    TOKEN: min(old / sampler, cap) a token. SEQUENCE: min(product over the trajectory's tokens, cap), the same for all
    of them. NONE: 1. "old" is the trainer's policy before the update. Truncated importance sampling never drops a
    token. Trajectories must be whole.
    """
    difference_S = (old_S - sampler_S).detach()
    if correction is Correction.NONE:
        return torch.ones_like(difference_S)
    if correction is Correction.SEQUENCE:
        difference_S = _sums(difference_S, rows_S)[rows_S]
    return torch.exp(_limited(difference_S)).clamp(max=cap)


def aggregation_weights(
    tokens_R: Sequence[int], aggregation: Aggregation, total_tokens: int, total_rows: int, max_tokens: int
) -> list[float]:
    """The weight of every token of each trajectory. Weights depend on counts of the whole update alone.

    tokens_R: supervised tokens of the trajectories at hand; total_tokens, total_rows: of the whole update, all
    micro-batches and ranks. TOKEN_MEAN: 1 / total_tokens. SEQUENCE_MEAN: 1 / (own tokens x total_rows). CONSTANT:
    1 / (total_rows x max_tokens).
    """
    if aggregation is Aggregation.TOKEN_MEAN:
        return [1.0 / total_tokens] * len(tokens_R)
    if aggregation is Aggregation.CONSTANT:
        return [1.0 / (total_rows * max_tokens)] * len(tokens_R)
    return [1.0 / (tokens * total_rows) if tokens else 0.0 for tokens in tokens_R]


def _clipped(
    ratios_S: Tensor, advantages_S: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> TokenLosses:
    free_S = -advantages_S * ratios_S
    bounded_S = -advantages_S * ratios_S.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss_S, clipped_S = torch.maximum(free_S, bounded_S), bounded_S > free_S
    if dual_clip is not None:
        ceiling_S = -advantages_S * dual_clip
        too_high_S = (advantages_S < 0) & (loss_S > ceiling_S)
        loss_S, clipped_S = torch.where(too_high_S, ceiling_S, loss_S), clipped_S | too_high_S
    return TokenLosses(loss_S, clipped_S.float())


def _limited(log_ratios: Tensor) -> Tensor:
    return log_ratios.clamp(-MAXIMUM_LOG_RATIO, MAXIMUM_LOG_RATIO)


def _sums(values_S: Tensor, rows_S: Tensor) -> Tensor:
    """Sums over the tokens of each trajectory, [R]."""
    rows = int(rows_S.max()) + 1 if len(rows_S) else 0
    return values_S.new_zeros(rows).index_add(0, rows_S, values_S)
