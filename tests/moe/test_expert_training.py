"""Expert-only training: exact at the start, frozen weights bit-identical after, small optimizer state, exact export."""

from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import MOE_LAYERS, tiny_model
from transformers import AutoModelForCausalLM

from afm_core.config import ConfigError
from afm_core.moe.capture import moe_layers
from afm_core.moe.expert_training import merged, published, routing_overlap, routing_sets, train_only
from afm_core.moe.selection import ExpertSelection


def selection(name: str, **fields: Any) -> ExpertSelection:
    first, last = MOE_LAYERS[name][0], MOE_LAYERS[name][-1]
    values = {"domain": "code", "score": "token", "num_experts": 6, "trainable_share": 0.1}
    return ExpertSelection(**{**values, "experts": {str(first): [1, 4], str(last): [0]}, **fields})


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(3, 23)[None]).logits


def train(model: Any, steps: int = 3) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2, weight_decay=0.1)
    ids = torch.arange(3, 43).reshape(2, 20)
    for _ in range(steps):
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("name", sorted(MOE_LAYERS))
def test_frozen_weights_stay_bit_identical_and_the_export_reloads(name: str, tmp_path: Path) -> None:
    base = {key: tensor.clone() for key, tensor in tiny_model(name).state_dict().items()}
    model = tiny_model(name)
    start = logits(model)
    chosen = selection(name)
    trainable = train_only(model, chosen)
    assert torch.equal(logits(model), start), "the start is the base model"
    optimizer = train(model)
    assert sum(state["exp_avg"].numel() for state in optimizer.state.values()) == trainable
    state = merged(dict(model.named_parameters()), chosen)
    for key, before in base.items():
        if key not in state:  # a buffer
            continue
        layer = next((piece for piece in key.split(".") if piece.isdigit()), "")
        experts = chosen.experts.get(layer, []) if ".experts." in key else []
        frozen = [row for row in range(len(before)) if row not in experts]
        assert torch.equal(state[key][frozen], before[frozen]), key
        if experts:
            assert not torch.equal(state[key][experts], before[experts]), key
    plain = tiny_model(name)
    plain.load_state_dict(state, strict=False)
    assert torch.equal(logits(plain), logits(model)), "merging is exact"
    plain.save_pretrained(tmp_path)
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(reloaded), logits(model))
    if name != "GptOssConfig":  # published with fused experts
        assert any(
            key.endswith((".experts.0.down_proj.weight", ".experts.0.w2.weight")) for key in published(plain, state)
        )


def test_routers_are_trained_if_wished() -> None:
    model = tiny_model("Qwen3MoeConfig")
    train_only(model, selection("Qwen3MoeConfig"), router=True)
    trained = {name.split(".mlp.")[1].split(".")[0] for name, one in model.named_parameters() if one.requires_grad}
    assert trained == {"gate", "experts"}


def test_routing_drift_is_one_without_training_and_falls_with_it() -> None:
    model = tiny_model("OlmoeConfig")
    rows = [list(range(3, 40)), list(range(10, 30))]
    before = routing_sets(model, rows)
    assert before.shape == (3, 57, 6)
    assert before.sum(-1).unique().tolist() == [2]
    assert routing_overlap(before, routing_sets(model, rows)) == [1.0] * 3
    train_only(model, selection("OlmoeConfig"))
    train(model, steps=10)
    overlap = routing_overlap(before, routing_sets(model, rows))
    assert overlap[0] == 1.0, "nothing below the first router is trained"
    assert overlap[-1] < 1.0


def test_a_selection_of_another_model_is_refused() -> None:
    model = tiny_model("Qwen3MoeConfig")
    with pytest.raises(ConfigError, match="with 8 experts a layer, this one has 6"):
        train_only(model, selection("Qwen3MoeConfig", num_experts=8))
    with pytest.raises(ConfigError, match="no mixture layer"):
        train_only(model, selection("Qwen3MoeConfig", experts={"1": [0]}))
    with pytest.raises(ConfigError, match="names no expert"):
        train_only(model, selection("Qwen3MoeConfig", experts={}))
    assert all(parameter.requires_grad for parameter in model.parameters()), "nothing was frozen"
    assert len(moe_layers(model)) == 2
