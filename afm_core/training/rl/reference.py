"""The reference policy of rl.kl_coefficient: a frozen copy of the starting model on every rank.

It is held whole (no ZeRO): a rank scores its own micro-batches without talking to the others, at the price of one
copy of the weights a rank. Each trajectory is scored once a step.
"""

from pathlib import Path

import torch
from torch import Tensor

from afm_core.config import Dtype, RlConfig
from afm_core.training.rl.policy import PolicyBatch, PolicyLoss


class FrozenReference:
    """Log-probabilities of a model that is never trained. See afm_core.training.rl.update.Reference."""

    def __init__(self, directory: Path, config: RlConfig, device: torch.device) -> None:
        from transformers import AutoModelForCausalLM

        dtype = torch.bfloat16 if config.dtype is Dtype.BF16 else torch.float32
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).to(device)
        self._device = device
        self._policy = PolicyLoss(model.requires_grad_(False), config).eval()

    def __call__(self, batch: PolicyBatch) -> Tensor:
        """Log-probabilities of the batch's supervised tokens, [S], on the CPU."""
        with torch.no_grad():
            scored: Tensor = self._policy(batch.to(self._device), score=True)
        return scored.cpu()
