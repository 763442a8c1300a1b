"""Low-rank adapters: injected into the model for training, merged into its weights for export.

Merging works on names and tensors, W + (alpha / rank) B A, so that it does not matter whether the weights come from a
live model or were gathered from ZeRO-3's parts.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from afm_core.config import ConfigError, LoraConfig

_ADAPTER = "default"


def inject(model: Any, config: LoraConfig) -> None:
    """Add adapters to the target layers of a causal LM, in place; everything else is frozen.

    Raises ConfigError if the model has none of the target layers.
    """
    import peft

    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=list(config.targets),
        bias="none",
    )
    try:
        peft.inject_adapter_in_model(settings, model, adapter_name=_ADAPTER)
    except ValueError as error:
        raise ConfigError(f"lora.targets {list(config.targets)}: {error}") from error


def merge(state: Mapping[str, Tensor], config: LoraConfig) -> dict[str, Tensor]:
    """Plain weights out of the parameters of a model with adapters. Tensors without adapter are passed on as they are.

    The product is computed in fp32 and added in the weight's own format.
    """
    merged: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if ".lora_A." in name or ".lora_B." in name:
            continue
        layer, found, kind = name.partition(".base_layer.")
        if found and kind == "weight":
            down = state[f"{layer}.lora_A.{_ADAPTER}.weight"].float()
            up = state[f"{layer}.lora_B.{_ADAPTER}.weight"].float()
            tensor = (tensor.float() + (config.alpha / config.rank) * (up @ down)).to(tensor.dtype)
        merged[f"{layer}.{kind}" if found else name] = tensor
    return merged
