"""Training some experts of a mixture-of-experts model and nothing else.

Experts are fused in one tensor a layer, [E, ...]. Masking the gradients of the others would not do: AdamW's weight
decay moves them all the same, and its state is as large as for all of them. Here the fused tensor is frozen, the chosen
rows are a small parameter of their own, and a parametrization puts them in their places when the layer reads its
weights. So the optimizer knows the chosen rows alone, everything else stays bit-identical, and the start is exactly the
base model. The price is one copy of a layer's experts a forward pass.

With ZeRO 3 the fused tensors would be partitioned under the parametrization: refused by the configuration.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from afm_core.config import ConfigError
from afm_core.moe.capture import MoeLayer, Routing, captured, moe_layers
from afm_core.moe.selection import ExpertSelection

_ROWS = "rows"
_PLACES = "places"


class _ChosenRows(nn.Module):
    """Puts trained rows [S, ...] into a frozen tensor [E, ...]."""

    def __init__(self, frozen: Tensor, chosen: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer(_PLACES, torch.tensor(list(chosen)), persistent=False)
        self.rows = nn.Parameter(frozen.detach()[list(chosen)].clone())

    def forward(self, frozen: Tensor) -> Tensor:
        return frozen.index_copy(0, self.get_buffer(_PLACES), self.rows)


def train_only(model: Any, selection: ExpertSelection, *, router: bool = False) -> int:
    """Freeze a causal LM but for the chosen experts (and the routers, if `router`), in place.

    Returns the number of trainable parameters.

    Raises:
        ConfigError: a dense model, a selection of another model, or one without any expert.
    """
    layers = moe_layers(model)
    chosen = selection.chosen([layer.layer for layer in layers])
    if selection.num_experts != layers[0].num_experts:
        raise ConfigError(
            f"the selection is of a model with {selection.num_experts} experts a layer, this one has "
            f"{layers[0].num_experts}"
        )
    if not any(chosen):
        raise ConfigError(f"the selection for {selection.domain!r} names no expert: there is nothing to train")
    model.requires_grad_(False)
    for layer, some in zip(layers, chosen, strict=True):
        if some:
            _parametrize(layer, some)
        if router:
            layer.router.requires_grad_(True)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _parametrize(layer: MoeLayer, chosen: Sequence[int]) -> None:
    """Every tensor of the fused experts has one row an expert: weights, and in gpt-oss biases."""
    for name, tensor in list(layer.experts.named_parameters(recurse=False)):
        assert tensor.shape[0] == layer.num_experts, f"{layer.name}.{name} has no row for each expert"
        parametrize.register_parametrization(layer.experts, name, _ChosenRows(tensor, chosen), unsafe=True)


def merged(state: Mapping[str, Tensor], selection: ExpertSelection) -> dict[str, Tensor]:
    """Plain weights out of the parameters of a model that `train_only` prepared: the trained rows in their places.

    The frozen rows are the base model's, bit for bit.
    """
    plain: dict[str, Tensor] = {}
    for name, tensor in state.items():
        module, found, part = name.partition(".parametrizations.")
        if not found:
            plain[name] = tensor
            continue
        weight, _, kind = part.partition(".")
        if kind == "original":
            rows = state[f"{module}.parametrizations.{weight}.0.{_ROWS}"]
            layer = next(piece for piece in module.split(".") if piece.isdigit())
            places = torch.tensor(sorted(selection.experts[layer]), device=tensor.device)
            plain[f"{module}.{weight}"] = tensor.detach().index_copy(0, places, rows.detach().to(tensor))
    return plain


def published(model: Any, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the names of published checkpoints (one tensor an expert), which vLLM and others read."""
    from transformers.core_model_loading import revert_weight_conversion

    reverted: dict[str, Tensor] = revert_weight_conversion(model, dict(state))
    return reverted


def routing_sets(model: Any, rows: Sequence[Sequence[int]]) -> Tensor:
    """Which experts each token of the rows is sent to: booleans [L, T, E]. No gradient; the mode of the model stays."""
    layers = moe_layers(model)
    seen: list[list[Tensor]] = [[] for _ in layers]

    def sink(routing: Routing) -> None:
        chosen = torch.zeros(len(routing.indices), layers[0].num_experts, dtype=torch.bool)
        seen[routing.place].append(chosen.scatter_(1, routing.indices.cpu(), True))

    device = next(model.parameters()).device
    with torch.no_grad(), captured(layers, lambda: None, sink):
        for row in rows:
            # `bounds` is for the attention of training (afm_core.training.loss); any other passes it by.
            model(torch.tensor([list(row)], device=device), use_cache=False, bounds=(0, len(row)))
    return torch.stack([torch.cat(parts) for parts in seen])


def routing_overlap(before: Tensor, after: Tensor) -> list[float]:
    """For each layer the mean Jaccard overlap of the experts that a token was sent to, before and after training.

    A frozen router drifts too: what reaches it comes through trained experts below.
    """
    both = (before & after).sum(-1).double()
    either = (before | after).sum(-1).double()
    return [float(value) for value in (both / either).mean(-1)]
