"""A recorder's counts and sample, batch by batch, are those of all tokens at once; its memory is bounded."""

import numpy as np
import pytest
import torch
from architectures import tiny_model

from afm_core.moe.capture import Routing, captured, moe_layers
from afm_core.moe.recording import BLOCKS, DomainRouting, Recorder, stiffness


def record(rows: list[torch.Tensor], size: int, sample_tokens: int = 1000) -> DomainRouting:
    """Documents routed in padded batches of `size`."""
    model = tiny_model("Qwen3MoeConfig")
    layers = moe_layers(model)
    recorder = Recorder("code", layers, sample_tokens)
    with torch.no_grad(), captured(layers, recorder.mask, recorder.sink):
        for start in range(0, len(rows), size):
            chunk = rows[start : start + size]
            ids = torch.nn.utils.rnn.pad_sequence(chunk, batch_first=True)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in chunk], batch_first=True).bool()
            documents = torch.arange(start, start + len(chunk))[:, None].expand_as(ids)
            recorder.begin(ids, documents, mask)
            model(ids, attention_mask=mask.long())
    return recorder.result()


def rows(count: int) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [torch.randint(3, 60, (4 + place % 5,)) for place in range(count)]


def test_batches_do_not_matter() -> None:
    one, many = record(rows(9), 1), record(rows(9), 4)
    assert np.array_equal(one.counts, many.counts)
    assert one.gates == pytest.approx(many.gates, abs=1e-5)
    assert np.array_equal(one.sample.token_ids, many.sample.token_ids)
    assert np.array_equal(one.sample.primary, many.sample.primary)
    assert one.documents == len(one.tokens) == 9


def test_every_token_is_counted_and_no_padding() -> None:
    documents = rows(9)
    found = record(documents, 4)
    tokens = sum(len(row) for row in documents)
    assert found.tokens.tolist() == [len(row) for row in documents]
    assert found.counts.sum((0, 2)).tolist() == [2 * tokens] * 2
    assert found.gates.sum() == pytest.approx(2 * tokens, rel=1e-4), "normalised weights sum to 1 a token and layer"
    recount = np.zeros_like(found.counts)
    sample = found.sample
    for token in range(tokens):
        for layer in range(2):
            recount[sample.documents[token], layer, sample.indices[token, layer]] += 1
    assert np.array_equal(recount, found.counts)


def test_the_sample_and_the_blocks_are_bounded() -> None:
    found = record(rows(BLOCKS + 6), 16, sample_tokens=25)
    assert len(found.sample.token_ids) == len(found.sample.margins) == 25
    assert len(found.tokens) == BLOCKS
    assert found.tokens.sum() == sum(len(row) for row in rows(BLOCKS + 6))


def test_the_primary_expert_is_the_strongest_not_the_first() -> None:
    layers = moe_layers(tiny_model("Qwen3MoeConfig"))
    recorder = Recorder("code", layers, 10)
    recorder.begin(torch.tensor([[5]]), torch.tensor([[0]]), torch.tensor([[True]]))
    for place in range(2):
        recorder.sink(Routing(place, torch.zeros(1, 6), torch.tensor([[4, 1]]), torch.tensor([[0.2, 0.8]])))
    assert recorder.result().sample.primary.tolist() == [[1, 1]]


def test_stiffness_of_scores_by_hand() -> None:
    scores = torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    margins, stable = stiffness(scores, 2, 0.01, torch.Generator().manual_seed(0))
    assert margins.tolist() == pytest.approx([1 / float(scores.std())] * 2)
    assert stable.tolist() == [True, True]
    close = torch.tensor([[1.0, 1.0, 1.0, 1.0]] * 64)
    _, stable = stiffness(torch.cat([close, scores]), 2, 1.0, torch.Generator().manual_seed(0))
    assert stable[:64].float().mean() < 0.5


def test_experts_of_ruled_out_groups_cannot_win() -> None:
    scores = torch.tensor([[0.9, 0.8, -torch.inf, -torch.inf]])
    margins, stable = stiffness(scores, 2, 5.0, torch.Generator().manual_seed(0))
    assert (margins.tolist(), stable.tolist()) == ([0.0], [True])


def test_a_domain_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="domain 'code' has no token"):
        Recorder("code", moe_layers(tiny_model("OlmoeConfig")), 10).result()
