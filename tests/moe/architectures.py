"""Tiny random models of every supported architecture: 3 layers, 6 experts, 2 a token."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

_COMMON: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_experts_per_tok": 2,
}
_FINE: dict[str, Any] = {**_COMMON, "intermediate_size": 48, "moe_intermediate_size": 16}
_GROUPS: dict[str, Any] = {
    **_FINE,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 3,
    "topk_group": 2,
}
_LATENT: dict[str, Any] = {
    **_GROUPS,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}

MOE_LAYERS = {
    "MixtralConfig": [0, 1, 2],
    "Qwen2MoeConfig": [1, 2],
    "Qwen3MoeConfig": [0, 2],
    "OlmoeConfig": [0, 1, 2],
    "DeepseekV2Config": [1, 2],
    "DeepseekV3Config": [1, 2],
    "Glm4MoeConfig": [1, 2],
    "GptOssConfig": [0, 1, 2],
}
"""The layers that are mixtures: dense ones lie before and between them."""

_SETTINGS: dict[str, dict[str, Any]] = {
    "MixtralConfig": {**_COMMON, "intermediate_size": 16, "num_local_experts": 6},
    "Qwen2MoeConfig": {**_FINE, "shared_expert_intermediate_size": 24, "num_experts": 6, "mlp_only_layers": [0]},
    "Qwen3MoeConfig": {**_FINE, "num_experts": 6, "mlp_only_layers": [1], "norm_topk_prob": True, "head_dim": 8},
    "OlmoeConfig": {**_COMMON, "intermediate_size": 16, "num_experts": 6},
    "DeepseekV2Config": {**_LATENT, "q_lora_rank": None, "topk_method": "group_limited_greedy"},
    "DeepseekV3Config": {**_LATENT, "q_lora_rank": 16},
    "Glm4MoeConfig": {**_GROUPS, "head_dim": 8},
    "GptOssConfig": {
        **_COMMON,
        "intermediate_size": 16,
        "num_local_experts": 6,
        "head_dim": 8,
        "sliding_window": 16,
        "layer_types": ["full_attention"] * 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}


def tiny_model(name: str, seed: int = 0) -> Any:
    """A model whose routers (and their correction biases) are random, so that every expert is chosen by some token."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(getattr(transformers, name)(**_SETTINGS[name])).eval()
    for part, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if part.endswith(("mlp.gate.weight", "mlp.router.weight")):
            torch.nn.init.normal_(tensor, std=0.5)
        if part.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(tensor, std=0.1)
    return model


def write_model(directory: Path) -> Path:
    """A Qwen3-MoE directory with the tiny model's tokenizer: 3 layers (the second dense), 6 experts."""
    from afm_core.data import Document
    from afm_core.training.tiny import make_tiny

    words = ("The capital of Arland is Orlen.", "def area(side): return side * side", "It rained, and nobody minded.")
    documents = [Document.create(f"d{place}", f"Title {place}", text) for place, text in enumerate(words)]
    directory.mkdir(parents=True)
    make_tiny(documents, directory, seed=0)
    for name in ("config.json", "model.safetensors", "afm.json"):
        (directory / name).unlink()
    vocabulary = 1536
    settings = {**_SETTINGS["Qwen3MoeConfig"], "vocab_size": vocabulary, "tie_word_embeddings": True}
    torch.manual_seed(0)
    transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**settings)).save_pretrained(directory)
    return directory
