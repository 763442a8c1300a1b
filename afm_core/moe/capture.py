"""Which experts every token was sent to: routing captured by hooks while a mixture-of-experts model runs forward.

In transformers every mixture-of-experts block is a router (`mlp.gate`, gpt-oss `mlp.router`) that gives logits, weights
and indices, and a fused `mlp.experts` module that is called with hidden states, indices and weights. The hook on the
experts sees what was really computed with, in all architectures alike, whatever backend computes it; the logits come
from the router beside it. Nothing is derived from logits: softmax before or after the choice, correction biases and
groups of experts differ between architectures (see `ranked_scores`).

Departs from `output_router_logits=True`: that flag adds a loss in some architectures, returns rows of padding, and
names no layer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from afm_core.config import ConfigError

_ROUTERS = ("gate", "router")
_INDICES = ("top_k_index", "router_indices")
_WEIGHTS = ("top_k_weights", "routing_weights")


@dataclass(frozen=True)
class MoeLayer:
    """One mixture-of-experts layer: its place in the model (dense layers are counted too) and its modules."""

    layer: int
    name: str
    router: Any
    experts: Any

    @property
    def num_experts(self) -> int:
        """Routed experts; shared ones are not among them."""
        return int(self.experts.num_experts)


@dataclass(frozen=True)
class Routing:
    """What one layer did with N tokens. `logits` [N, E] are the router's own; indices [N, k], weights [N, k]."""

    place: int
    logits: Tensor
    indices: Tensor
    weights: Tensor


Sink = Callable[[Routing], None]
"""Called once a layer and forward pass, with the tokens of the mask alone; `place` counts MoE layers from 0."""


def moe_layers(model: Any) -> list[MoeLayer]:
    """The mixture-of-experts layers of a causal LM, in order.

    Raises:
        ConfigError: a dense model, or one whose experts this capture does not know.
    """
    modules = dict(model.named_modules())
    found = []
    for name, module in modules.items():
        if not name.endswith(".experts") or not hasattr(module, "num_experts"):
            continue
        block = name.removesuffix(".experts")
        router = next((modules[f"{block}.{one}"] for one in _ROUTERS if f"{block}.{one}" in modules), None)
        if router is None:
            raise ConfigError(f"{type(model).__name__}: no router beside {name} (looked for {', '.join(_ROUTERS)})")
        found.append(MoeLayer(int(next(part for part in name.split(".") if part.isdigit())), name, router, module))
    if not found:
        raise ConfigError(f"{type(model).__name__} has no mixture-of-experts layer: there is no routing to diagnose")
    return found


@contextmanager
def captured(layers: list[MoeLayer], mask: Callable[[], Tensor | None], sink: Sink) -> Iterator[None]:
    """While the block runs, every forward pass of the model reports its routing to `sink`.

    `mask()` is asked once a layer: the tokens that count, [batch, length] or [N] booleans; None: all of them.
    """
    handles = []
    try:
        for place, layer in enumerate(layers):
            logits: list[Tensor] = []
            handles.append(layer.router.register_forward_hook(_keep_logits(logits)))
            hook = _report(place, logits, mask, sink)
            handles.append(layer.experts.register_forward_pre_hook(hook, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _keep_logits(place: list[Tensor]) -> Callable[..., None]:
    def hook(_module: Any, _inputs: Any, output: Any) -> None:
        place[:] = [output[0].detach()]

    return hook


def _report(place: int, logits: list[Tensor], mask: Callable[[], Tensor | None], sink: Sink) -> Callable[..., None]:
    def hook(_module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        indices = _argument(inputs, named, 1, _INDICES).detach()
        weights = _argument(inputs, named, 2, _WEIGHTS).detach()
        scores = logits.pop().reshape(len(indices), -1)
        if (counted := mask()) is not None:
            chosen = counted.reshape(-1).bool()
            scores, indices, weights = scores[chosen], indices[chosen], weights[chosen]
        sink(Routing(place, scores, indices, weights))

    return hook


def _argument(inputs: tuple[Any, ...], named: dict[str, Any], place: int, names: tuple[str, ...]) -> Tensor:
    """An argument of the experts' forward, by any of its names or by its place behind the hidden states."""
    for name in names:
        if name in named:
            value: Tensor = named[name]
            return value
    value = inputs[place - ("hidden_states" in named)]
    return value


def ranked_scores(layer: MoeLayer, logits: Tensor) -> Tensor:
    """[N, E], the scores whose top k the layer really chose; experts of groups that were ruled out have -inf.

    DeepSeek-V3 and GLM-4: sigmoid plus correction bias, inside the best groups (sum of a group's two best).
    DeepSeek-V2 with groups: logits inside the groups with the best single expert. All others: the logits.
    """
    router = layer.router
    bias = getattr(router, "e_score_correction_bias", None)
    scores = logits.float() if bias is None else logits.float().sigmoid() + bias.float()
    groups = int(getattr(router, "num_group", None) or 1)
    limited = bias is not None or getattr(router, "topk_method", "") == "group_limited_greedy"
    if not limited or groups == 1:
        return scores
    grouped = scores.reshape(len(scores), groups, -1)
    best = grouped.topk(min(2, grouped.shape[-1]), dim=-1)[0].sum(-1) if bias is not None else grouped.max(-1).values
    kept = torch.zeros_like(best, dtype=torch.bool).scatter_(1, best.topk(int(router.topk_group), dim=-1)[1], True)
    return grouped.masked_fill(~kept.unsqueeze(-1), -torch.inf).reshape(len(scores), -1)
