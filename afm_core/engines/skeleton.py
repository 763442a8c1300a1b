"""A model without weights, and weights put into it straight from tensors: no file between trainer and engine.

The skeleton's parameters are allocated and never touched, which costs no memory on Linux; its buffers (rotary
frequencies) are real, which they would not be on the meta device. `fill` copies unless the trainer lends its tensors:
it goes on changing them. Where linear layers are packed, the packed form is the copy.
"""

import ctypes
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from afm_core.engines.packed import pack_linears
from afm_core.engines.slots import NAME

_SHOWN = 3


def skeleton(directory: Path, dtype: torch.dtype) -> Any:
    """The causal LM of a model directory, its parameters undefined."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
    from transformers.initialization import no_init_weights

    config = AutoConfig.from_pretrained(directory)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=NAME)
    if (directory / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(directory)
    return model


def check_state(model: Any, state: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless the state has exactly the skeleton's names and shapes (a tied weight may be left out)."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict(keep_vars=True).items()}
    tied = dict(model.all_tied_weights_keys)
    missing = sorted(expected.keys() - state.keys() - tied.keys())
    unknown = sorted(state.keys() - expected.keys())
    if missing or unknown:
        raise ValueError(f"these are not the weights of this model: missing {_some(missing)}, unknown {_some(unknown)}")
    for name, tensor in state.items():
        if tuple(tensor.shape) != expected[name]:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the model needs {expected[name]}")
    for name, source in tied.items():
        if name in state and not _same(state[name], state[source]):
            raise ValueError(f"{name} differs from {source}, but the model ties them")


def fill(
    model: Any, state: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype, *, pack: bool, lent: bool
) -> None:
    """Give a skeleton its weights on `device` in `dtype`; `pack`: linear layers in packed form.

    lent: tensors that need no conversion are used as they are, and must not change while the model is in use.
    `check_state` must have passed.
    """
    tied = model.all_tied_weights_keys.keys()
    packed = (
        {f"{name}.weight" for name, module in model.named_modules() if type(module) is nn.Linear} if pack else set()
    )
    values = {
        name: tensor.detach().to(device, dtype, copy=not lent and name not in packed)
        for name, tensor in state.items()
        if name not in tied
    }
    model.load_state_dict(values, strict=False, assign=True)
    model.tie_weights()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.to(device)  # the buffers
    if pack:
        pack_linears(model)


def give_back_memory() -> None:
    """Return freed heap to the system (glibc keeps small weights' memory, half a gigabyte of SmolLM2's)."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other libraries have none
        if trim is not None:
            trim(0)


def _same(left: Tensor, right: Tensor) -> bool:
    return left.data_ptr() == right.data_ptr() or torch.equal(left, right)


def _some(names: list[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
