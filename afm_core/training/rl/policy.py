"""The policy in training: packed experience in, the update's loss and its figures out.

The same packed forward pass as supervised fine-tuning (afm_core.training.loss): isolated attention, logits only where
a token is trained, a chunk at a time. Log-probabilities are those of the distribution that was sampled: fp32 logits
divided by the sampling temperature.

Which log-probabilities are "old" (the denominator of the ratio that is clipped):

| rl.correction | rl.updates | old |
|---|---|---|
| none | any | the sampler's own: the ratio covers both the updates and the sampler's inexactness |
| token, sequence | 1 | this forward pass's, detached: the ratio is 1, no pass is spent on them |
| token, sequence | more | `PolicyBatch.old_S`, scored before the first update |

With a correction, old / sampler is the truncated importance weight.

Shape suffixes as in afm_core.training.loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afm_core.config import Correction, Objective, RlConfig
from afm_core.training.loss import PackedBatch, PackedCausalLM, learned_places
from afm_core.training.loss import collate as collate_tokens
from afm_core.training.rl.experience import ExperienceRow
from afm_core.training.rl.losses import TokenLosses, cispo, dapo, gspo, importance_weights, k3

STATISTICS = (
    "loss",
    "entropy",
    "clip_share",
    "kl_sampler",
    "kl_reference",
    "importance_weight",
    "logprob_difference",
)
"""Entries of PolicyLoss's result. All are sums, the loss with its weights, the others over the supervised tokens."""


@dataclass(frozen=True)
class PolicyBatch(PackedBatch):
    """A micro-batch of whole trajectories; tensors of S have an entry a supervised token."""

    rows_S: Tensor
    """Index of the token's trajectory in this batch."""
    advantages_S: Tensor
    sampler_S: Tensor
    """The sampler's log-probabilities."""
    weights_S: Tensor
    """How much the token counts in the update's loss (see losses.aggregation_weights)."""
    temperature: float
    old_S: Tensor | None = None
    """Log-probabilities of the policy before the update, where they are needed."""
    reference_S: Tensor | None = None
    """Log-probabilities of the reference policy, with rl.kl_coefficient."""


def collate(rows: Sequence[ExperienceRow], weights_R: Sequence[float], temperature: float) -> PolicyBatch:
    """Pack trajectories one after the other; weights_R: the weight of every token of each of them."""
    places = [learned_places(row) for row in rows]
    packed = collate_tokens(rows)

    def numbers(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32)

    return PolicyBatch(
        ids_T=packed.ids_T,
        positions_T=packed.positions_T,
        bounds=packed.bounds,
        supervised_S=packed.supervised_S,
        targets_S=packed.targets_S,
        chunks=packed.chunks,
        rows_S=torch.tensor([number for number, own in enumerate(places) for _ in own], dtype=torch.long),
        advantages_S=numbers([row.advantages[place] for row, own in zip(rows, places, strict=True) for place in own]),
        sampler_S=numbers([row.logprobs[place] for row, own in zip(rows, places, strict=True) for place in own]),
        weights_S=numbers([weight for weight, own in zip(weights_R, places, strict=True) for _ in own]),
        temperature=temperature,
    )


class PolicyLoss(PackedCausalLM):
    """A causal language model as a function from a PolicyBatch to STATISTICS, whose first entry is to be minimised."""

    def __init__(self, model: Any, config: RlConfig) -> None:
        super().__init__(model)
        self._config = config

    def forward(self, batch: PolicyBatch, score: bool = False) -> Tensor:
        """STATISTICS as a vector, or with `score` the log-probabilities of the supervised tokens, [S] (nats)."""
        if score:
            return torch.cat(self.over_chunks(partial(_logprobs, temperature=batch.temperature), batch))
        wants_gradient = self._config.entropy_coefficient != 0.0
        function = partial(_logprobs_and_entropies, temperature=batch.temperature, entropy_gradient=wants_gradient)
        logprobs_S, entropies_S = torch.cat(self.over_chunks(function, batch), dim=1)
        return self._statistics(batch, logprobs_S, entropies_S)

    def _statistics(self, batch: PolicyBatch, logprobs_S: Tensor, entropies_S: Tensor) -> Tensor:
        config = self._config
        old_S = self._old(batch, logprobs_S)
        losses = self._objective(batch, logprobs_S, old_S)
        importance_S = importance_weights(
            old_S, batch.sampler_S, batch.rows_S, config.correction, config.correction_cap
        )
        loss_S = losses.loss_S * importance_S
        kl_reference_S = torch.zeros_like(logprobs_S)
        if config.kl_coefficient:
            assert batch.reference_S is not None, "rl.kl_coefficient needs the reference's log-probabilities"
            kl_reference_S = k3(logprobs_S, batch.reference_S)
            loss_S = loss_S + config.kl_coefficient * kl_reference_S
        if config.entropy_coefficient:
            loss_S = loss_S - config.entropy_coefficient * entropies_S
        with torch.no_grad():
            figures = {
                "entropy": entropies_S,
                "clip_share": losses.clipped_S,
                # The tokens are the sampler's: KL(sampler || policy).
                "kl_sampler": k3(batch.sampler_S, logprobs_S),
                "kl_reference": kl_reference_S,
                "importance_weight": importance_S,
                "logprob_difference": (logprobs_S - batch.sampler_S).abs(),
            }
            sums = [figures[name].sum() for name in STATISTICS[1:]]
        return torch.stack([(loss_S * batch.weights_S).sum(), *sums])

    def _old(self, batch: PolicyBatch, logprobs_S: Tensor) -> Tensor:
        if self._config.correction is Correction.NONE:
            return batch.sampler_S
        return logprobs_S.detach() if batch.old_S is None else batch.old_S

    def _objective(self, batch: PolicyBatch, logprobs_S: Tensor, old_S: Tensor) -> TokenLosses:
        config, given = self._config, (logprobs_S, old_S, batch.advantages_S)
        match config.objective:
            case Objective.DAPO:
                return dapo(*given, config.clip_low, config.clip_high, config.dual_clip)
            case Objective.GSPO:
                return gspo(*given, batch.rows_S, config.clip_low, config.clip_high)
            case Objective.CISPO:
                return cispo(*given, config.clip_low, config.clip_high)


def _logprobs(head: nn.Module, hidden_SD: Tensor, targets_S: Tensor, temperature: float) -> Tensor:
    return -F.cross_entropy(head(hidden_SD).float() / temperature, targets_S, reduction="none")


def _logprobs_and_entropies(
    head: nn.Module, hidden_SD: Tensor, targets_S: Tensor, temperature: float, entropy_gradient: bool
) -> Tensor:
    """[2, S]: log-probabilities and entropies; a graph through the entropies only where it is wanted."""
    logits_SV = head(hidden_SD).float() / temperature
    logprobs_S = -F.cross_entropy(logits_SV, targets_S, reduction="none")
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        all_SV = logits_SV.log_softmax(-1)
        entropies_S = -(all_SV.exp() * all_SV).sum(-1)
    return torch.stack([logprobs_S, entropies_S])
