"""Experience and a one-process engine for tests of the policy loss and the update."""

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from training_samples import random_rows

from afm_core.config import RlConfig
from afm_core.training.loss import PackedBatch
from afm_core.training.rl.experience import ExperienceRow
from afm_core.training.rl.policy import PolicyBatch, PolicyLoss


def row(
    ids: Sequence[int],
    mask: Sequence[int],
    advantage: float,
    logprobs: Sequence[float] = (),
    group: int = 0,
    name: str = "r",
) -> ExperienceRow:
    """A row whose model tokens all have one advantage; the sampler's log-probabilities default to -1."""
    logprobs = logprobs or [-1.0 if learned else 0.0 for learned in mask]
    advantages = tuple(advantage if learned else 0.0 for learned in mask)
    return ExperienceRow(name, group, tuple(ids), tuple(mask), tuple(logprobs), advantages)


def experience(count: int, seed: int = 0, vocabulary: int = 50, longest: int = 40) -> list[ExperienceRow]:
    """Random rows in groups of two, the first of which is better than the second."""
    generator = random.Random(seed)
    return [
        row(
            one.ids,
            one.mask,
            advantage=(0.5 + generator.random()) * (1 if number % 2 == 0 else -1),
            logprobs=[-generator.uniform(1.0, 6.0) if learned else 0.0 for learned in one.mask],
            group=number // 2,
            name=one.id,
        )
        for number, one in enumerate(random_rows(count, vocabulary, seed, longest))
    ]


def rl_config(**values: Any) -> RlConfig:
    """Short trajectories, micro-batches of at most 64 tokens."""
    return RlConfig.model_validate({"max_tokens": 48, "micro_batch_tokens": 64, "learning_rate": 1e-3, **values})


class LocalEngine:
    """One rank, AdamW, no DeepSpeed. Keeps the gradients and rates of its steps; `frozen` only keeps, never moves."""

    def __init__(self, model: Any, config: RlConfig, rank: int = 0, world_size: int = 1, frozen: bool = False) -> None:
        self.rank, self.world_size = rank, world_size
        self.module = PolicyLoss(model, config)
        self.gradients: list[list[Tensor]] = []
        self.rates: list[float] = []
        self.calls: list[str] = []
        self._frozen = frozen
        self._optimizer = torch.optim.AdamW(self.module.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed % 2**63)

    def accumulate(self, batch: PackedBatch, weight: float) -> list[float]:
        self.calls.append("accumulate")
        values = self.module(batch)
        (values[0] * weight).backward()
        return values.tolist()

    def score(self, batch: PolicyBatch) -> Tensor:
        self.calls.append("score")
        with torch.no_grad():
            return self.module(batch, score=True)

    def step(self, learning_rate: float) -> float:
        self.calls.append("step")
        parameters = list(self.module.parameters())
        self.gradients.append([parameter.grad.clone() for parameter in parameters])
        self.rates.append(learning_rate)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        if not self._frozen:
            self._optimizer.step()
        self._optimizer.zero_grad()
        return float(torch.stack([gradient.norm() for gradient in self.gradients[-1]]).norm())

    def total(self, values: Sequence[float]) -> list[float]:
        return list(values)


def plain_logprobs(model: Any, one: ExperienceRow, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of a row's model tokens by a plain forward pass, nothing packed."""
    logits = model(input_ids=torch.tensor([one.ids])).logits[0, :-1].float() / temperature
    everything = torch.log_softmax(logits, -1)
    places = torch.tensor([place - 1 for place in range(1, len(one.ids)) if one.mask[place]])
    chosen = everything[places]
    targets = torch.tensor(one.ids)[places + 1]
    return chosen.gather(1, targets[:, None])[:, 0], -(chosen.exp() * chosen).sum(-1)
