"""Our advantages and losses against what verl and TRL computed (benchmarks/published_losses.py recorded it).

Where definitions differ: verl's whitening and its means divide by count + 1e-8, and it bounds GSPO's ratio by e^10 and
a k3 estimate by 10; the inputs reach no such bound, and the rest lies below the tolerances. TRL's CISPO has no lower
bound, which is clip_low = 1 here, and its `delta` is our dual clip. TRL adds 1e-4 to a group's deviation, where we and
verl add 1e-6: its advantages, computed in the midst of its sampling, are not recorded.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from afm_core.config import Aggregation, Correction
from afm_core.training.rl.advantages import dr_grpo, generalized_advantages, grpo, reinforce_pp, rloo
from afm_core.training.rl.losses import (
    TokenLosses,
    aggregation_weights,
    cispo,
    dapo,
    gspo,
    importance_weights,
    k3,
)

RECORDED = json.loads(Path(__file__).with_name("published_values.json").read_text())
INPUTS, VERL, TRL = RECORDED["inputs"], RECORDED["verl"], RECORDED["trl"]
BOUNDS = (INPUTS["clip_low"], INPUTS["clip_high"])
KEPT = [(row, place) for row, mask in enumerate(INPUTS["mask"]) for place, bit in enumerate(mask) if bit]
ROWS_S = torch.tensor([row for row, _ in KEPT])
LENGTHS = [sum(mask) for mask in INPUTS["mask"]]
AGGREGATIONS = {
    "token-mean": Aggregation.TOKEN_MEAN,
    "seq-mean-token-mean": Aggregation.SEQUENCE_MEAN,
    "seq-mean-token-sum-norm": Aggregation.CONSTANT,
}


def supervised(table: list[list[float]]) -> Tensor:
    """The model tokens' entries, fp64."""
    return torch.tensor([table[row][place] for row, place in KEPT], dtype=torch.float64)


OLD_S = supervised(INPUTS["old"])
NEW_S = OLD_S + supervised(INPUTS["shift"])
SAMPLER_S = OLD_S - supervised(INPUTS["sampler_shift"])
ADVANTAGES_S = torch.tensor([INPUTS["advantages"][row] for row, _ in KEPT], dtype=torch.float64)


def weights(aggregation: Aggregation) -> Tensor:
    values = aggregation_weights(LENGTHS, aggregation, sum(LENGTHS), len(LENGTHS), len(INPUTS["mask"][0]))
    return torch.tensor(values, dtype=torch.float64)[ROWS_S]


def our_losses(name: str, new_S: Tensor) -> TokenLosses:
    match name:
        case "dapo":
            return dapo(new_S, OLD_S, ADVANTAGES_S, *BOUNDS, INPUTS["dual_clip"])
        case "gspo":
            return gspo(new_S, OLD_S, ADVANTAGES_S, ROWS_S, *BOUNDS)
        case _:
            return cispo(new_S, OLD_S, ADVANTAGES_S, *BOUNDS)


def check(recorded: dict[str, Any], function: Callable[[Tensor], Tensor]) -> None:
    """The summed loss and every token's gradient."""
    leaf = NEW_S.clone().requires_grad_()
    loss = function(leaf).sum()
    loss.backward()
    assert loss.item() == pytest.approx(recorded["loss"], rel=1e-6)
    torch.testing.assert_close(leaf.grad, supervised(recorded["gradient"]), rtol=1e-6, atol=1e-8)


def test_the_versions_are_noted() -> None:
    assert RECORDED["versions"]["verl"] == "0.9.1"
    assert RECORDED["versions"]["trl"].startswith("1.16.")


@pytest.mark.parametrize(("name", "estimator"), [("grpo", grpo), ("dr_grpo", dr_grpo), ("rloo", rloo)])
def test_group_advantages_equal_verl(name: str, estimator: Callable[[list[float]], list[float]]) -> None:
    ours: list[float] = []
    for group in sorted(set(INPUTS["groups"])):
        rewards = [r for r, g in zip(INPUTS["rewards"], INPUTS["groups"], strict=True) if g == group]
        ours += estimator(rewards)
    assert ours == pytest.approx(VERL[name], rel=1e-9)


def test_reinforce_pp_equals_verl() -> None:
    ours = reinforce_pp(INPUTS["token_rewards"], INPUTS["mask"], INPUTS["discount"])
    assert [*map(pytest.approx, VERL["reinforce_pp"])] == ours


def test_generalized_advantages_equal_verl_before_its_whitening() -> None:
    for row, mask in enumerate(INPUTS["mask"]):
        ours = generalized_advantages(
            INPUTS["token_rewards"][row], INPUTS["values"][row], mask, INPUTS["discount"], INPUTS["lam"]
        )
        assert ours == pytest.approx(VERL["gae"][row])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", ["dapo", "gspo", "cispo"])
def test_losses_and_their_gradients_equal_verl(name: str, aggregation: str) -> None:
    weights_S = weights(AGGREGATIONS[aggregation])
    check(VERL[f"{name} {aggregation}"], lambda new_S: our_losses(name, new_S).loss_S * weights_S)


def test_dapo_equals_trl() -> None:
    check(TRL["dapo"], lambda new_S: our_losses("dapo", new_S).loss_S * weights(Aggregation.TOKEN_MEAN))


def test_gspo_equals_trl() -> None:
    check(TRL["gspo"], lambda new_S: our_losses("gspo", new_S).loss_S * weights(Aggregation.SEQUENCE_MEAN))


def test_cispo_equals_trl() -> None:
    check(
        TRL["cispo"],
        lambda new_S: (
            cispo(new_S, OLD_S, ADVANTAGES_S, 1.0, INPUTS["clip_high"]).loss_S * weights(Aggregation.TOKEN_MEAN)
        ),
    )


def test_the_kl_term_equals_trl() -> None:
    def loss(new_S: Tensor) -> Tensor:
        return (our_losses("dapo", new_S).loss_S + 0.5 * k3(new_S, SAMPLER_S)) * weights(Aggregation.TOKEN_MEAN)

    check(TRL["dapo with kl"], loss)


def test_k3_equals_verl() -> None:
    torch.testing.assert_close(k3(NEW_S, OLD_S), supervised(VERL["k3"]))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_weights_equal_verl(level: str) -> None:
    ours = importance_weights(OLD_S, SAMPLER_S, ROWS_S, Correction(level), INPUTS["cap"])
    torch.testing.assert_close(ours, supervised(VERL[f"importance {level}"]))
