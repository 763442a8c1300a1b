"""Captured routing equals what a slow, independent reading of each architecture computes."""

from typing import Any

import pytest
import torch
from architectures import MOE_LAYERS, tiny_model
from torch import Tensor

from afm_core.config import ConfigError
from afm_core.moe.capture import MoeLayer, Routing, captured, moe_layers, ranked_scores

ARCHITECTURES = sorted(MOE_LAYERS)


def batch() -> tuple[Tensor, Tensor]:
    """Two rows of 7 tokens, the first padded by three on the left."""
    torch.manual_seed(1)
    ids = torch.randint(3, 60, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, :3] = 0
    return ids, mask


def run(model: Any, counted: Tensor | None) -> tuple[list[Routing], list[Tensor]]:
    """The captured routing, and the hidden states [N, H] that each router saw."""
    layers, seen, states = moe_layers(model), [], []
    watchers = [
        layer.router.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0].reshape(-1, 32).detach()))
        for layer in layers
    ]
    ids, mask = batch()
    with torch.no_grad(), captured(layers, lambda: counted, seen.append):
        model(ids, attention_mask=mask)
    for watcher in watchers:
        watcher.remove()
    return seen, states


def slow(name: str, layer: MoeLayer, state: Tensor) -> tuple[set[int], dict[int, float]]:
    """Experts and weights of one token, straight from the architecture's description."""
    router = layer.router
    logits = [float(row @ state) for row in router.weight.detach()]
    if name == "GptOssConfig":
        logits = [value + float(bias) for value, bias in zip(logits, router.bias.detach(), strict=True)]
    exponentials = [torch.tensor(value).exp().item() for value in logits]
    scores = [value / sum(exponentials) for value in exponentials]
    ranked = list(scores)
    if name in ("DeepseekV3Config", "Glm4MoeConfig"):
        scores = [1 / (1 + torch.tensor(-value).exp().item()) for value in logits]
        ranked = [score + float(bias) for score, bias in zip(scores, router.e_score_correction_bias, strict=True)]
        strength = [ranked[2 * group] + ranked[2 * group + 1] for group in range(3)]
    if name == "DeepseekV2Config":
        strength = [max(ranked[2 * group], ranked[2 * group + 1]) for group in range(3)]
    allowed = range(6)
    if name in ("DeepseekV2Config", "DeepseekV3Config", "Glm4MoeConfig"):
        groups = sorted(range(3), key=lambda group: -strength[group])[:2]
        allowed = [expert for expert in range(6) if expert // 2 in groups]
    chosen = sorted(allowed, key=lambda expert: -ranked[expert])[:2]
    weights = {expert: scores[expert] for expert in chosen}
    if name not in ("Qwen2MoeConfig", "OlmoeConfig", "DeepseekV2Config"):
        weights = {expert: weight / sum(weights.values()) for expert, weight in weights.items()}
    scale = float(getattr(router, "routed_scaling_factor", 1.0))
    return set(chosen), {expert: weight * scale for expert, weight in weights.items()}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_routing_equals_a_slow_recomputation(name: str) -> None:
    model = tiny_model(name)
    layers = moe_layers(model)
    assert [layer.layer for layer in layers] == MOE_LAYERS[name]
    seen, states = run(model, None)
    assert [one.place for one in seen] == list(range(len(layers)))
    for layer, routing, hidden in zip(layers, seen, states, strict=True):
        for state, indices, weights in zip(hidden, routing.indices, routing.weights, strict=True):
            experts, expected = slow(name, layer, state)
            assert set(indices.tolist()) == experts
            for expert, weight in zip(indices.tolist(), weights.tolist(), strict=True):
                assert weight == pytest.approx(expected[expert], abs=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_ranked_score_is_the_one_whose_top_k_was_chosen(name: str) -> None:
    model = tiny_model(name)
    for layer, routing in zip(moe_layers(model), run(model, None)[0], strict=True):
        best = ranked_scores(layer, routing.logits).topk(2, dim=-1)[1]
        assert torch.equal(best.sort(-1)[0], routing.indices.sort(-1)[0])


@pytest.mark.parametrize("name", ["Qwen3MoeConfig", "GptOssConfig"])
def test_padding_is_left_out(name: str) -> None:
    model = tiny_model(name)
    _, mask = batch()
    everything, real = run(model, None)[0], run(model, mask)[0]
    for all_tokens, counted in zip(everything, real, strict=True):
        assert torch.equal(counted.indices, all_tokens.indices[mask.reshape(-1).bool()])
        assert len(counted.logits) == len(counted.weights) == 11


def test_hidden_states_that_come_by_keyword_do_not_shift_the_arguments() -> None:
    model = tiny_model("Qwen3MoeConfig")
    layers = moe_layers(model)
    state, indices, weights = torch.zeros(1, 32), torch.tensor([[4, 1]]), torch.tensor([[0.75, 0.25]])
    seen: list[Routing] = []
    with torch.no_grad(), captured(layers[:1], lambda: None, seen.append):
        layers[0].router(state)
        layers[0].experts(hidden_states=state, top_k_index=indices, top_k_weights=weights)
        layers[0].router(state)
        layers[0].experts(state, indices, top_k_weights=weights)
    assert all(torch.equal(one.indices, indices) and torch.equal(one.weights, weights) for one in seen)


def test_hooks_are_gone_after_the_block() -> None:
    model = tiny_model("OlmoeConfig")
    run(model, None)
    assert not any(layer.experts._forward_pre_hooks or layer.router._forward_hooks for layer in moe_layers(model))


def test_a_dense_model_is_refused() -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=8, **shape))
    with pytest.raises(ConfigError, match="LlamaForCausalLM has no mixture-of-experts layer"):
        moe_layers(model)
