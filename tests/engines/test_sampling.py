"""Sampling by inversion: the right frequencies, never an impossible token."""

import pytest
import torch

from afm_core.engines.sampling import TokenStream, _invert, sample


def test_frequencies_follow_the_distribution():
    torch.manual_seed(0)
    logits = torch.randn(1, 700)
    stream = TokenStream(1)
    drawn = [sample(logits, [0.8], [stream])[0][0] for _ in range(3000)]
    share = torch.bincount(torch.tensor(drawn), minlength=700) / 3000
    expected = (logits[0] / 0.8).softmax(-1)
    assert float((share - expected).abs().sum()) < 0.45  # random noise alone gives about 0.35
    top = expected.topk(20).indices
    assert share[top].sum() == pytest.approx(float(expected[top].sum()), abs=0.04)


@pytest.mark.parametrize("vocabulary", [1, 255, 256, 257, 1000])
def test_inversion_equals_the_plain_cumulative_sum(vocabulary):
    torch.manual_seed(vocabulary)
    weights = torch.rand(64, vocabulary).softmax(-1)
    uniforms = torch.rand(64, dtype=torch.float64)
    cumulative = weights.double().cumsum(-1)
    expected = (cumulative <= (uniforms * cumulative[:, -1])[:, None]).sum(-1)
    assert (_invert(weights, uniforms) == expected).all()


def test_a_token_without_weight_is_never_drawn():
    weights = torch.zeros(4, 600)
    weights[:, 299] = 0.3
    weights[:, 400] = 0.7
    nearly_one = 1.0 - 2.0**-53
    drawn = _invert(weights, torch.tensor([0.0, 0.2, 0.5, nearly_one], dtype=torch.float64))
    assert drawn.tolist() == [299, 299, 400, 400]


def test_greedy_rows_and_sampled_rows_share_a_batch():
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 0.0, 0.0]])
    ids, logprobs = sample(logits, [0.0, 1e-3], [TokenStream(0), TokenStream(0)])
    assert ids == [1, 0]
    assert logprobs[0] == pytest.approx(float(logits[0].log_softmax(-1)[1]))
    assert logprobs[1] == pytest.approx(0.0)


def test_logits_that_are_not_finite_do_not_raise():
    logits = torch.full((2, 300), float("nan"))
    _, logprobs = sample(logits, [0.0, 1.0], [TokenStream(0), TokenStream(0)])
    assert all(value != value for value in logprobs)
