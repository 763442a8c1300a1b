"""Policy losses on toy tensors: values worked out by hand, gradients against the plain formulas, invariances."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from afm_core.config import Aggregation, Correction
from afm_core.training.plan import micro_batches
from afm_core.training.rl.losses import (
    aggregation_weights,
    cispo,
    dapo,
    gspo,
    importance_weights,
    k3,
)


def logs(*values: float) -> Tensor:
    """Logarithms in fp64."""
    return torch.tensor(values, dtype=torch.float64).log()


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Of the sum of the function's values."""
    leaf = at.clone().requires_grad_()
    function(leaf).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def test_dapo_by_hand() -> None:
    # old 0.4 everywhere but for the last; bounds 0.8 and 1.28; ceiling 10.
    old = logs(0.4, 0.4, 0.4, 0.4, 0.4, 0.01)
    new = logs(0.6, 0.6, 0.2, 0.2, 0.4, 0.2)
    advantages = numbers(1, -1, 1, -1, 2, -1)
    losses = dapo(new, old, advantages, 0.2, 0.28, 10.0)
    # r 1.5, A 1: max(-1.5, -1.28) = -1.28, bounded
    # r 1.5, A -1: max(1.5, 1.28) = 1.5
    # r 0.5, A 1: max(-0.5, -0.8) = -0.5
    # r 0.5, A -1: max(0.5, 0.8) = 0.8, bounded
    # r 1, A 2: -2
    # r 20, A -1: max(20, 1.28) = 20, but no more than 10
    assert losses.loss_S.tolist() == pytest.approx([-1.28, 1.5, -0.5, 0.8, -2, 10])
    assert losses.clipped_S.tolist() == [1, 0, 0, 1, 0, 1]
    assert dapo(new, old, advantages, 0.2, 0.28, None).loss_S[-1].item() == pytest.approx(20)


def test_dapo_has_no_gradient_where_it_is_bounded() -> None:
    # Unbounded: d(-A r)/d logprob = -A r.
    old, new = logs(0.4, 0.4, 0.4, 0.4, 0.4, 0.01), logs(0.6, 0.6, 0.2, 0.2, 0.4, 0.2)
    advantages = numbers(1, -1, 1, -1, 2, -1)
    slopes = gradient(lambda leaf: dapo(leaf, old, advantages, 0.2, 0.28, 10.0).loss_S, new)
    assert slopes.tolist() == pytest.approx([0, 1.5, -0.5, 0, -2, 0])


def test_gspo_by_hand() -> None:
    # Row 0: ratios 2 and 0.5, their geometric mean is 1. Row 1: ratios 1.44 and 1, the mean is 1.2.
    rows = torch.tensor([0, 0, 1, 1])
    old, new = logs(0.2, 0.4, 0.25, 0.5), logs(0.4, 0.2, 0.36, 0.5)
    free = gspo(new, old, numbers(3, 3, -1, -1), rows, 0.1, 0.1)
    assert free.loss_S.tolist() == pytest.approx([-3, -3, 1.2, 1.2])
    assert free.clipped_S.tolist() == [0, 0, 0, 0]
    bounded = gspo(new, old, numbers(3, 3, 1, 1), rows, 0.1, 0.1)
    assert bounded.loss_S.tolist() == pytest.approx([-3, -3, -1.1, -1.1])
    assert bounded.clipped_S.tolist() == [0, 0, 1, 1]


def test_gspo_has_the_gradient_of_the_paper() -> None:
    """The paper's formula (7): mean over sequences of min(s A, clip(s) A), s with its gradient."""
    rows = torch.tensor([0, 0, 0, 1, 1])
    old, new = logs(0.2, 0.4, 0.3, 0.25, 0.5), logs(0.25, 0.4, 0.2, 0.36, 0.5)
    advantages_R = (1.5, -0.7)

    def paper(leaf: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for number, advantage in enumerate(advantages_R):
            ratio = (leaf - old)[rows == number].mean().exp()
            total = total - torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage) / 2
        return total

    weights = torch.tensor(aggregation_weights([3, 2], Aggregation.SEQUENCE_MEAN, 5, 2, 9), dtype=torch.float64)[rows]
    advantages = numbers(*advantages_R)[rows]

    def ours(leaf: Tensor) -> Tensor:
        return gspo(leaf, old, advantages, rows, 0.1, 0.1).loss_S * weights

    assert ours(new).sum().item() == pytest.approx(paper(new).item())
    torch.testing.assert_close(gradient(ours, new), gradient(paper, new))


def test_cispo_by_hand() -> None:
    # r 1.5 is bounded to 1.28: -1.28 * 1 * log 0.6 = 0.653857. r 0.5 is bounded to 0.8: 0.8 * log 0.2 = -1.287550.
    # r 1: -2 * log 0.5 = 1.386294. The slope is -bound * A.
    old, new, advantages = logs(0.4, 0.4, 0.5), logs(0.6, 0.2, 0.5), numbers(1, -1, 2)
    losses = cispo(new, old, advantages, 0.2, 0.28)
    assert losses.loss_S.tolist() == pytest.approx([0.653857, -1.287550, 1.386294], abs=1e-6)
    assert losses.clipped_S.tolist() == [1, 1, 0]
    slopes = gradient(lambda leaf: cispo(leaf, old, advantages, 0.2, 0.28).loss_S, new)
    assert slopes.tolist() == pytest.approx([-1.28, 0.8, -2])
    unbounded_below = cispo(logs(0.001), logs(0.4), numbers(1), 1.0, 0.28)
    assert unbounded_below.clipped_S.item() == 0


def test_k3_by_hand() -> None:
    # x = log 0.25 - log 0.5 = -0.693147: 0.5 + 0.693147 - 1 = 0.193147. Its slope is 1 - e^x = 0.5.
    assert k3(logs(0.5), logs(0.25)).item() == pytest.approx(0.193147, abs=1e-6)
    assert gradient(lambda leaf: k3(leaf, logs(0.25)), logs(0.5)).item() == pytest.approx(0.5)
    assert k3(logs(0.3), logs(0.3)).item() == 0


def test_k3_estimates_the_divergence() -> None:
    """Its mean under the policy is KL(policy || reference), exactly when all outcomes are summed."""
    policy, reference = numbers(0.7, 0.2, 0.1), numbers(0.3, 0.3, 0.4)
    exact = (policy * (policy.log() - reference.log())).sum().item()
    assert (policy * k3(policy.log(), reference.log())).sum().item() == pytest.approx(exact)


def test_importance_weights_by_hand() -> None:
    # Ratios 3, 0.5 in row 0 and 3, 3 in row 1.
    old, sampler = logs(0.6, 0.2, 0.6, 0.6), logs(0.2, 0.4, 0.2, 0.2)
    rows = torch.tensor([0, 0, 1, 1])
    assert importance_weights(old, sampler, rows, Correction.TOKEN, 2.0).tolist() == pytest.approx([2, 0.5, 2, 2])
    # Products 1.5 and 9.
    assert importance_weights(old, sampler, rows, Correction.SEQUENCE, 2.0).tolist() == pytest.approx([1.5, 1.5, 2, 2])
    assert importance_weights(old, sampler, rows, Correction.NONE, 2.0).tolist() == [1, 1, 1, 1]


def test_importance_weights_carry_no_gradient() -> None:
    leaf = logs(0.6).requires_grad_()
    assert not importance_weights(leaf, logs(0.2), torch.tensor([0]), Correction.TOKEN, 9.0).requires_grad


@pytest.mark.parametrize("difference", [1e4, -1e4])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_far_log_ratios_stay_finite(difference: float, advantage: float) -> None:
    new = torch.tensor([difference], dtype=torch.float32, requires_grad=True)
    old, rows = torch.zeros(1), torch.tensor([0])
    advantages = torch.tensor([advantage])
    values = [
        dapo(new, old, advantages, 0.2, 0.28, None).loss_S,
        gspo(new, old, advantages, rows, 0.2, 0.28).loss_S,
        cispo(new, old, advantages, 0.2, 0.28).loss_S,
        k3(new, old),
        importance_weights(new, old, rows, Correction.TOKEN, 1e30),
    ]
    assert all(torch.isfinite(value).all() for value in values)
    torch.stack([value.sum() for value in values]).sum().backward()
    assert new.grad is not None
    assert torch.isfinite(new.grad).all()


def test_aggregation_weights_by_hand() -> None:
    # Trajectories of 2 and 6 tokens out of an update of 10 tokens in 3 trajectories, longest allowed 8.
    assert aggregation_weights([2, 6], Aggregation.TOKEN_MEAN, 10, 3, 8) == [0.1, 0.1]
    assert aggregation_weights([2, 6], Aggregation.SEQUENCE_MEAN, 10, 3, 8) == pytest.approx([1 / 6, 1 / 18])
    assert aggregation_weights([2, 6], Aggregation.CONSTANT, 10, 3, 8) == pytest.approx([1 / 24, 1 / 24])


def test_trl_6369_a_trajectory_without_trained_tokens_is_in_no_denominator() -> None:
    alone = aggregation_weights([4], Aggregation.SEQUENCE_MEAN, 4, 1, 8)
    assert aggregation_weights([4, 0], Aggregation.SEQUENCE_MEAN, 4, 1, 8) == [*alone, 0.0]


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    capacity=st.integers(9, 40),
    world_size=st.integers(1, 4),
    aggregation=st.sampled_from(list(Aggregation)),
    name=st.sampled_from(["dapo", "gspo", "cispo"]),
    seed=st.integers(0, 9),
)
def test_the_spread_over_micro_batches_and_ranks_changes_nothing(
    lengths: list[int], capacity: int, world_size: int, aggregation: Aggregation, name: str, seed: int
) -> None:
    """Sum over all micro-batches of weighted losses, and its gradient, against all rows at once."""
    generator = torch.Generator().manual_seed(seed)
    everything = torch.randn(4, sum(lengths), generator=generator, dtype=torch.float64)
    ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
    weights_R = aggregation_weights(lengths, aggregation, sum(lengths), len(lengths), 9)

    def loss(leaf: Tensor, members: tuple[int, ...]) -> Tensor:
        places = torch.cat([torch.arange(ends[member], ends[member + 1]) for member in members])
        rows = torch.cat([torch.full((lengths[member],), at) for at, member in enumerate(members)])
        new, old, advantages = leaf[places], everything[1][places] * 0.3 + everything[0][places], everything[2][places]
        bounds = (0.2, 0.28)
        match name:
            case "dapo":
                tokens = dapo(new, old, advantages, *bounds, 3.0)
            case "gspo":
                tokens = gspo(new, old, advantages, rows, *bounds)
            case _:
                tokens = cispo(new, old, advantages, *bounds)
        importance = importance_weights(old, everything[3][places], rows, Correction.SEQUENCE, 2.0)
        return tokens.loss_S * importance * torch.tensor([weights_R[member] for member in members])[rows]

    whole = gradient(lambda leaf: loss(leaf, tuple(range(len(lengths)))), everything[0])
    parts = torch.zeros_like(whole)
    for rank in micro_batches(range(len(lengths)), lengths, capacity, world_size):
        for batch in rank:
            if batch.counted:
                parts += gradient(lambda leaf, batch=batch: loss(leaf, batch.rows), everything[0])
    torch.testing.assert_close(parts, whole)


@given(
    new=st.lists(st.floats(-6, 0), min_size=1, max_size=6),
    shift=st.floats(-1, 1),
    advantage=st.floats(-3, 3),
    dual_clip=st.sampled_from([None, 3.0]),
)
def test_dapo_equals_the_plain_formula(
    new: list[float], shift: float, advantage: float, dual_clip: float | None
) -> None:
    """min(r A, clip(r) A) of the paper, token by token in plain Python."""
    leaf = numbers(*new)
    losses = dapo(leaf, leaf - shift, torch.full_like(leaf, advantage), 0.2, 0.28, dual_clip)
    ratio = math.exp(shift)
    objective = min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
    if dual_clip is not None and advantage < 0:
        objective = max(objective, dual_clip * advantage)
    assert losses.loss_S.tolist() == pytest.approx([-objective] * len(new))
