"""Runs the advantage and loss functions of verl and TRL on small fixed inputs and records what they say.

The values are what `tests/training/rl/test_rl_published.py` compares ours with. Both packages stay out of our
environment; a second one borrows our torch and transformers through a .pth file:

    python -m venv /tmp/published
    echo $PWD/.venv/lib/python3.11/site-packages > /tmp/published/lib/python3.11/site-packages/ours.pth
    /tmp/published/bin/pip install --no-deps verl==0.9.1 trl==1.16.0 omegaconf antlr4-python3-runtime==4.9.3 \
        tensordict pyvers orjson importlib_metadata codetiming hydra-core dill
    /tmp/published/bin/python benchmarks/published_losses.py tests/training/rl/published_values.json

Everything is computed in fp64. Losses are recorded with their gradient to the log-probabilities, so that every token
is compared and not only the mean.
"""

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch import Tensor

REWARDS = [1.0, 0.0, 0.25, 0.0, 0.5, 2.0, -1.0]
GROUPS = [0, 0, 0, 0, 1, 1, 1]
MASK = [[1, 1, 0, 0, 1], [1, 1, 1, 0, 0], [1, 0, 0, 1, 1], [1, 0, 0, 0, 0]]
"""Model tokens 1; zeros in the middle are a tool's tokens, at the end padding."""
OLD = [
    [-1.2, -0.7, 0.0, 0.0, -2.0],
    [-0.3, -1.1, -0.9, 0.0, 0.0],
    [-2.5, 0.0, 0.0, -0.4, -1.6],
    [-5.0, 0.0, 0.0, 0.0, 0.0],
]
SHIFT = [
    [0.5, -0.4, 0.0, 0.0, 0.1],
    [-0.6, 0.05, 0.4, 0.0, 0.0],
    [0.7, 0.0, 0.0, -0.3, 0.02],
    [3.5, 0.0, 0.0, 0.0, 0.0],
]
"""New minus old log-probabilities; the last token's ratio is e^3.5 = 33, beyond the dual clip."""
SAMPLER_SHIFT = [
    [0.2, -0.9, 0.0, 0.0, 0.3],
    [0.1, 0.1, -0.1, 0.0, 0.0],
    [-0.5, 0.0, 0.0, 0.9, 1.1],
    [-0.2, 0.0, 0.0, 0.0, 0.0],
]
"""Old minus the sampler's log-probabilities."""
ADVANTAGES = [1.5, -0.5, -1.0, -2.0]
TOKEN_REWARDS = [
    [0.0, 0.1, 9.0, 9.0, 1.0],
    [0.0, 0.0, -1.0, 0.0, 0.0],
    [0.3, 9.0, 9.0, 0.0, 2.0],
    [0.5, 0.0, 0.0, 0.0, 0.0],
]
"""Per token, with 9 where a reward must not be read."""
VALUES = [[0.5, 0.4, 7.0, 7.0, 0.2], [0.1, -0.2, 0.3, 0.0, 0.0], [1.0, 7.0, 7.0, 0.8, 0.6], [0.2, 0.0, 0.0, 0.0, 0.0]]
CLIP_LOW, CLIP_HIGH, DUAL_CLIP, CAP = 0.2, 0.28, 10.0, 2.0
DISCOUNT, LAM = 0.9, 0.8


def main(target: str) -> None:
    """Write the values to a JSON file."""
    recorded = {
        "made_by": "benchmarks/published_losses.py",
        "versions": {name: version(name) for name in ("verl", "trl", "torch")},
        "inputs": {name.lower(): value for name, value in globals().items() if name.isupper()},
        "verl": {**verl_advantages(), **verl_losses()},
        "trl": trl_losses(),
    }
    Path(target).write_text(json.dumps(recorded, indent=1) + "\n")


def verl_advantages() -> dict[str, Any]:
    """Group advantages, GAE and REINFORCE++ as verl.trainer.ppo.core_algos has them."""
    from verl.trainer.ppo import core_algos

    rewards, one = table([[reward] for reward in REWARDS]), torch.ones(len(REWARDS), 1, dtype=torch.float64)
    index = numpy.array(GROUPS)
    mask, token_rewards = table(MASK), table(TOKEN_REWARDS)
    grpo, _ = core_algos.compute_grpo_outcome_advantage(rewards.clone(), one, index)
    dr_grpo, _ = core_algos.compute_grpo_outcome_advantage(rewards.clone(), one, index, norm_adv_by_std_in_grpo=False)
    rloo, _ = core_algos.compute_rloo_outcome_advantage(rewards.clone(), one, index)
    reinforce, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        token_rewards, mask, config=SimpleNamespace(gamma=DISCOUNT)
    )
    _, returns = core_algos.compute_gae_advantage_return(token_rewards, table(VALUES), mask, DISCOUNT, LAM)
    return {
        "grpo": grpo[:, 0].tolist(),
        "dr_grpo": dr_grpo[:, 0].tolist(),
        "rloo": rloo[:, 0].tolist(),
        "reinforce_pp": reinforce.tolist(),
        "gae": ((returns - table(VALUES)) * mask).tolist(),
    }


def verl_losses() -> dict[str, Any]:
    """Policy losses (token mean and sequence mean), the KL estimate and the importance weights of verl."""
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
    from verl.workers.config import ActorConfig

    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=CLIP_LOW,
        clip_ratio_high=CLIP_HIGH,
        clip_ratio_c=DUAL_CLIP,
    )
    advantages = table([[advantage] * 5 for advantage in ADVANTAGES])
    values: dict[str, Any] = {}
    for name, function in (
        ("dapo", core_algos.compute_policy_loss_vanilla),
        ("gspo", core_algos.compute_policy_loss_gspo),
        ("cispo", core_algos.compute_policy_loss_cispo),
    ):
        for aggregation in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"):

            def loss(new: Tensor, function: Any = function, aggregation: str = aggregation) -> Tensor:
                result: Tensor = function(table(OLD), new, advantages, table(MASK), aggregation, config)[0]
                return result

            values[f"{name} {aggregation}"] = with_gradient(loss)
    new = table(OLD) + table(SHIFT)
    values["k3"] = core_algos.kl_penalty(new, table(OLD), "low_var_kl").tolist()
    for level in ("token", "sequence"):
        weights, _ = compute_rollout_correction_weights(table(SAMPLER_SHIFT), table(MASK), level, CAP)
        values[f"importance {level}"] = weights.tolist()
    return values


def trl_losses() -> dict[str, Any]:
    """TRL's GRPOTrainer._compute_loss on an object that holds nothing but the settings that it reads."""
    settings = {
        "dapo": {"loss_type": "dapo", "importance_sampling_level": "token"},
        "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "args": _arguments(None)},
        "cispo": {"loss_type": "cispo", "importance_sampling_level": "token", "epsilon_high": 1 + CLIP_HIGH},
        "dapo with kl": {"loss_type": "dapo", "importance_sampling_level": "token", "beta": 0.5},
    }
    return {name: with_gradient(lambda new, own=own: trl_loss(new, **own)) for name, own in settings.items()}


def trl_loss(new: Tensor, **settings: Any) -> Tensor:
    """The loss of one batch. `delta` is TRL's name for the ceiling that we and verl call dual clip."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    trainer = SimpleNamespace(
        **{
            "epsilon_low": CLIP_LOW,
            "epsilon_high": CLIP_HIGH,
            "beta": 0.0,
            "use_vllm": False,
            "aux_loss_enabled": False,
            "top_entropy_quantile": 1.0,
            "off_policy_mask_threshold": None,
            "_entropy_bonus_enabled": False,
            "current_gradient_accumulation_steps": 1,
            "model": SimpleNamespace(training=True),
            "args": _arguments(DUAL_CLIP),
            "accelerator": SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
            "_metrics": {"train": _Discarded()},
            "_get_per_token_logps_and_entropies": lambda *_, **__: (new, torch.zeros_like(new), None),
            **settings,
        }
    )
    mask = table(MASK)
    ids = torch.zeros(mask.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": torch.tensor(ADVANTAGES, dtype=torch.float64),
        "old_per_token_logps": table(OLD),
        "ref_per_token_logps": table(OLD) - table(SAMPLER_SHIFT),
        "num_items_in_batch": mask.sum(),
    }
    loss: Tensor = GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss


def _arguments(delta: float | None) -> SimpleNamespace:
    return SimpleNamespace(delta=delta, use_bias_correction_kl=False, steps_per_generation=1)


class _Discarded(dict[str, list[float]]):
    def __missing__(self, key: str) -> list[float]:
        return []


def with_gradient(function: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """The loss at OLD + SHIFT and its gradient, 0 where the mask is 0."""
    leaf = (table(OLD) + table(SHIFT)).requires_grad_()
    loss = function(leaf)
    loss.backward()
    assert leaf.grad is not None
    return {"loss": loss.item(), "gradient": leaf.grad.tolist()}


def table(rows: list[list[float]]) -> Tensor:
    """Rows in fp64."""
    return torch.tensor(rows, dtype=torch.float64)


if __name__ == "__main__":
    main(sys.argv[1])
