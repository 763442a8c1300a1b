"""The loss against the textbook: all logits of every row alone."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from training_samples import random_rows, small_llama

from afm_core.training import loss as loss_module
from afm_core.training.loss import SupervisedLoss, collate
from afm_core.training.rows import Row


def naive(model, rows: list[Row]) -> torch.Tensor:
    """Sum over rows of the cross-entropy of their learned tokens; every row alone, all its logits."""
    total = torch.zeros(())
    for row in rows:
        logits = model(input_ids=torch.tensor([row.ids])).logits[0, :-1].float()
        labels = torch.tensor([id if learned else -100 for id, learned in zip(row.ids, row.mask, strict=True)])[1:]
        total = total + F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    return total


def gradients(value: torch.Tensor, model) -> list[torch.Tensor]:
    model.zero_grad()
    value.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_packed_loss_and_gradients_equal_the_textbook() -> None:
    """In double precision: in single, one kernel and another differ by more than the mistakes that this is to find."""
    rows = random_rows(5)
    reference = small_llama().double()
    reference.set_attn_implementation("eager")
    expected = naive(reference, rows)
    model = small_llama().double()
    actual = SupervisedLoss(model)(collate(rows))
    assert actual.item() == pytest.approx(expected.item(), rel=1e-6)
    for mine, theirs in zip(gradients(actual, model), gradients(expected, reference), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_a_packed_row_has_the_loss_it_has_alone() -> None:
    rows = random_rows(4, seed=3)
    module = SupervisedLoss(small_llama())
    together = module(collate(rows)).item()
    alone = sum(module(collate([row])).item() for row in rows)
    assert together == pytest.approx(alone, rel=1e-6)


def test_a_row_does_not_see_its_neighbour() -> None:
    first, second, other = random_rows(3, seed=4)
    unlearned = Row("n", first.ids, (0,) * len(first.ids))
    stranger = Row("m", other.ids, (0,) * len(other.ids))
    module = SupervisedLoss(small_llama())
    assert module(collate([unlearned, second])).item() == pytest.approx(
        module(collate([stranger, second])).item(), rel=1e-6
    )


def test_chunked_logits_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(4, seed=5)
    model = small_llama()
    whole = SupervisedLoss(model)(collate(rows))
    before = gradients(whole, model)
    monkeypatch.setattr(loss_module, "CHUNK", 7)
    chunked = SupervisedLoss(model)(collate(rows))
    assert chunked.item() == pytest.approx(whole.item(), rel=1e-6)
    for mine, theirs in zip(gradients(chunked, model), before, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_empty_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ZeRO-3 a rank makes as many chunks as the rank with most: the rest of its are empty."""
    monkeypatch.setattr(loss_module, "CHUNK", 20)
    batch = collate(random_rows(4, seed=5))
    model = small_llama()
    plain = SupervisedLoss(model)(batch)
    before = gradients(plain, model)
    padded = SupervisedLoss(model)(replace(batch, chunks=batch.chunks + 2))
    assert padded.item() == plain.item()
    for mine, theirs in zip(gradients(padded, model), before, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_verl_3287_a_one_token_answer_is_learned() -> None:
    row = Row("a", (3, 4, 5, 6), (0, 0, 0, 1))
    batch = collate([row])
    assert (batch.supervised_S.tolist(), batch.targets_S.tolist()) == ([2], [6])
    model = small_llama()
    logits = model(input_ids=torch.tensor([row.ids])).logits[0, 2]
    expected = -torch.log_softmax(logits, -1)[6].item()
    assert SupervisedLoss(model)(batch).item() == pytest.approx(expected, rel=1e-5)


def test_nanochat_582_packing_keeps_the_masks() -> None:
    rows = [Row("a", (1, 2, 3), (0, 0, 1)), Row("b", (4, 5, 6, 7), (0, 1, 0, 1))]
    batch = collate(rows)
    assert batch.bounds == (0, 3, 7)
    assert batch.targets_S.tolist() == [3, 5, 7]
    assert batch.supervised_S.tolist() == [1, 3, 5]
    assert batch.positions_T.tolist() == [0, 1, 2, 0, 1, 2, 3]


def test_the_first_token_of_a_packed_row_is_not_predicted_from_the_row_before() -> None:
    batch = collate([Row("a", (1, 2), (0, 1)), Row("b", (3, 4), (1, 1))])
    assert batch.targets_S.tolist() == [2, 4]


def test_nothing_supervised_gives_zero_with_a_gradient() -> None:
    model = small_llama()
    value = SupervisedLoss(model)(collate([Row("a", (1, 2, 3), (0, 0, 0))]))
    assert value.item() == 0
    assert all(not gradient.any() for gradient in gradients(value, model))
