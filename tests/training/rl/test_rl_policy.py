"""The packed policy loss against plain, unpacked forward passes and the formulas written out."""

import math
from dataclasses import replace

import pytest
import torch
from policy_samples import experience, plain_logprobs, rl_config, row
from torch import Tensor
from training_samples import small_llama

from afm_core.config import RlConfig
from afm_core.training import loss as loss_module
from afm_core.training.rl.experience import ExperienceRow
from afm_core.training.rl.policy import STATISTICS, PolicyBatch, PolicyLoss, collate


def batch_of(rows: list[ExperienceRow], temperature: float = 1.0) -> PolicyBatch:
    """Every token weighs 1 / 10 000 x (its row's number + 1): weights that no row shares."""
    return collate(rows, [1e-4 * (number + 1) for number in range(len(rows))], temperature)


def figures(values: Tensor) -> dict[str, float]:
    return dict(zip(STATISTICS, values.tolist(), strict=True))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_packed_scores_equal_a_plain_forward_pass(temperature: float) -> None:
    rows, config = experience(5), rl_config()
    scored = PolicyLoss(small_llama(), config)(batch_of(rows, temperature), score=True)
    plain = small_llama()
    plain.set_attn_implementation("eager")
    expected = torch.cat([plain_logprobs(plain, one, temperature)[0] for one in rows])
    torch.testing.assert_close(scored, expected, rtol=1e-5, atol=1e-5)


def plain_loss(model, rows: list[ExperienceRow], config: RlConfig, reference_S: Tensor, old: list[Tensor]) -> Tensor:
    """The objective written out row by row; `old` are the old log-probabilities of each row."""
    total, start = torch.zeros(()), 0
    for number, one in enumerate(rows):
        logprobs, entropies = plain_logprobs(model, one, config.temperature)
        places = [place for place in range(1, len(one.ids)) if one.mask[place]]
        sampler = torch.tensor([one.logprobs[place] for place in places])
        advantage = torch.tensor([one.advantages[place] for place in places])
        reference = reference_S[start : start + len(places)]
        start += len(places)
        ratio = (logprobs - old[number]).exp()
        if config.objective == "gspo":
            # The token form (test_rl_losses shows that its gradient is the paper's): a token's importance weight
            # then scales that token's gradient, as in verl.
            ratio = (logprobs - old[number]).detach().mean().exp() * (logprobs - logprobs.detach()).exp()
        bounded = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
        loss = -torch.minimum(ratio * advantage, bounded * advantage)
        if config.objective == "dapo" and config.dual_clip:
            loss = torch.where(advantage < 0, torch.minimum(loss, -config.dual_clip * advantage), loss)
        if config.objective == "cispo":
            loss = -bounded.detach() * advantage * logprobs
        if config.correction == "token":
            loss = loss * (old[number] - sampler).exp().clamp(max=config.correction_cap)
        if config.correction == "sequence":
            loss = loss * (old[number] - sampler).sum().exp().clamp(max=config.correction_cap)
        difference = reference - logprobs
        loss = loss + config.kl_coefficient * (difference.exp() - difference - 1)
        loss = loss - config.entropy_coefficient * entropies
        total = total + 1e-4 * (number + 1) * loss.sum()
    return total


@pytest.mark.parametrize("objective", ["dapo", "gspo", "cispo"])
@pytest.mark.parametrize("correction", ["none", "token", "sequence"])
def test_loss_and_gradients_equal_the_formula_written_out(objective: str, correction: str) -> None:
    config = rl_config(
        objective=objective,
        correction=correction,
        temperature=0.8,
        updates=2,
        kl_coefficient=0.3,
        entropy_coefficient=0.05,
        dual_clip=3.0,
    )
    rows = experience(4, seed=2)
    plain = small_llama()
    plain.set_attn_implementation("eager")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        exact = [plain_logprobs(plain, one, config.temperature)[0] for one in rows]
    # A sampler close to the policy, and an old policy in between, so that some ratios are bounded and some are not.
    rows = [near(one, logprobs, generator) for one, logprobs in zip(rows, exact, strict=True)]
    old = [logprobs + 0.3 * torch.randn(logprobs.shape, generator=generator) for logprobs in exact]
    batch = batch_of(rows, config.temperature)
    reference = torch.cat(exact) - 0.2
    ready = replace(batch, reference_S=reference, old_S=torch.cat(old))
    if correction == "none":
        old = list(batch.sampler_S.split([len(one) for one in old]))
    expected = plain_loss(plain, rows, config, reference, old)
    expected.backward()
    module = PolicyLoss(small_llama(), config)
    actual = module(ready)[0]
    actual.backward()
    assert actual.item() == pytest.approx(expected.item(), rel=1e-4)
    assert not math.isclose(expected.item(), 0, abs_tol=1e-5)
    for mine, theirs in zip(module.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-6)


def near(one: ExperienceRow, logprobs: Tensor, generator: torch.Generator) -> ExperienceRow:
    """The row as if sampled by a policy that differs by some 0.3 nats a token."""
    values = iter((logprobs + 0.3 * torch.randn(logprobs.shape, generator=generator)).tolist())
    noted = tuple(next(values) if place and one.mask[place] else 0.0 for place in range(len(one.ids)))
    return replace(one, logprobs=noted)


def test_the_first_update_of_a_corrected_step_is_on_its_own_policy() -> None:
    """Ratio 1, nothing clipped, and the gradient is weight x importance x advantage x that of the log-probability."""
    config = rl_config(correction="token", correction_cap=1.5)
    rows = experience(2, seed=1)
    module = PolicyLoss(small_llama(), config)
    batch = batch_of(rows)
    values = module(batch)
    values[0].backward()
    assert figures(values)["clip_share"] == 0
    plain = small_llama()
    expected = torch.zeros(())
    for number, one in enumerate(rows):
        logprobs, _ = plain_logprobs(plain, one, 1.0)
        sampler = batch.sampler_S[batch.rows_S == number]
        importance = (logprobs.detach() - sampler).exp().clamp(max=1.5)
        advantages = batch.advantages_S[batch.rows_S == number]
        expected = expected - (1e-4 * (number + 1) * importance * advantages * logprobs).sum()
    expected.backward()
    for mine, theirs in zip(module.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-7)


def test_statistics_are_sums_over_trained_tokens() -> None:
    config, rows = rl_config(correction="token", correction_cap=1.25), experience(3, seed=3)
    model = small_llama()
    values = figures(PolicyLoss(model, config)(batch_of(rows)))
    plain = small_llama()
    with torch.no_grad():
        pairs = [plain_logprobs(plain, one, 1.0) for one in rows]
    logprobs, entropies = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    difference = logprobs - batch_of(rows).sampler_S
    assert values["entropy"] == pytest.approx(entropies.sum().item(), rel=1e-4)
    assert values["kl_sampler"] == pytest.approx((difference.exp() - difference - 1).sum().item(), rel=1e-3)
    assert values["importance_weight"] == pytest.approx(difference.exp().clamp(max=1.25).sum().item(), rel=1e-4)
    assert values["logprob_difference"] == pytest.approx(difference.abs().sum().item(), rel=1e-4)
    assert values["kl_reference"] == 0


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config, rows = rl_config(entropy_coefficient=0.1), experience(4, seed=5)
    results = []
    for chunk in (512, 7):
        monkeypatch.setattr(loss_module, "CHUNK", chunk)
        module = PolicyLoss(small_llama(), config)
        values = module(batch_of(rows))
        values[0].backward()
        scored = module(batch_of(rows), score=True)
        results.append([values.detach(), scored.detach(), *(one.grad for one in module.model.parameters())])
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(whole, chunked, rtol=1e-4, atol=1e-5)


def test_a_row_has_the_scores_it_has_alone() -> None:
    rows = experience(4, seed=6)
    module = PolicyLoss(small_llama(), rl_config())
    together = module(batch_of(rows), score=True)
    alone = torch.cat([module(batch_of([one]), score=True) for one in rows])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


def test_collation_aligns_everything_with_the_trained_tokens() -> None:
    first = row((1, 2, 3), (0, 0, 1), 0.5, (0, 0, -0.25), name="a")
    # A first token with mask 1 has no context: it is not trained.
    second = row((4, 5, 6, 7), (1, 1, 0, 1), -2.0, (-9, -1, 0, -3), name="b")
    batch = collate([first, second], [0.1, 0.2], 0.5)
    assert batch.targets_S.tolist() == [3, 5, 7]
    assert batch.rows_S.tolist() == [0, 1, 1]
    assert batch.advantages_S.tolist() == [0.5, -2, -2]
    assert batch.sampler_S.tolist() == [-0.25, -1, -3]
    assert batch.weights_S.tolist() == pytest.approx([0.1, 0.2, 0.2])
    moved = replace(batch, old_S=torch.zeros(3)).to(torch.device("cpu"))
    assert (moved.bounds, moved.temperature, moved.reference_S) == ((0, 3, 7), 0.5, None)


def test_no_trained_token_gives_zeros_with_a_graph() -> None:
    values = PolicyLoss(small_llama(), rl_config())(collate([row((1, 2, 3), (0, 0, 0), 1.0)], [1.0], 1.0))
    values[0].backward()
    assert values.tolist() == [0.0] * len(STATISTICS)
