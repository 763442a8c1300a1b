"""The loss of packed trajectories: body once over the packed row, logits only where a token is learned.

Departs from the textbook in three ways. Attention is isolated by slicing: several trajectories lie one after the
other in one row without padding, positions restart, and each is attended to alone (no mask matrix, no wasted scores).
Hidden states of unlearned positions never meet the vocabulary: with a quarter of the tokens learned, that saves three
quarters of the largest matrix product and of its memory. And the loss is a *sum*: the caller divides by the global
step's number of learned tokens, so that micro-batches, accumulation and ranks cannot change it.

Shape suffixes: T packed tokens, S supervised positions, D hidden size, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from afm_core.config import ConfigError

ISOLATED = "afm_isolated"
"""Name of the attention implementation below, for `model.set_attn_implementation`."""

CHUNK = 512
"""Supervised positions whose logits exist at one time: 512 x 49,152 floats are 100 MB."""


class TokenRow(Protocol):
    """What packing reads of a row: parallel ids and mask; mask 1 means the token is learned."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Token ids."""
        ...

    @property
    def mask(self) -> tuple[int, ...]:
        """1 for a learned token, else 0."""
        ...


@dataclass(frozen=True)
class PackedBatch:
    """Tensors of one micro-batch. `bounds` are the rows' borders in T, from 0 to T."""

    ids_T: Tensor
    positions_T: Tensor
    bounds: tuple[int, ...]
    supervised_S: Tensor
    """Positions in T whose *next* token is learned."""
    targets_S: Tensor
    """That next token."""
    chunks: int
    """Parts of at most CHUNK supervised positions; those beyond S are empty."""

    def to(self, device: torch.device) -> Self:
        """The same batch on a device."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value.to(device) for name, value in tensors.items() if isinstance(value, Tensor)})


def learned_places(row: TokenRow) -> list[int]:
    """Positions of a row's learned tokens, ascending. Nothing predicts the first token, so it never counts."""
    return [place for place in range(1, len(row.ids)) if row.mask[place]]


def collate(rows: Sequence[TokenRow]) -> PackedBatch:
    """Pack rows one after the other. Token t is predicted at t - 1 of its own row, never from the row before."""
    bounds = (0, *accumulate(len(row.ids) for row in rows))
    learned = [(start, row, place) for start, row in zip(bounds, rows, strict=False) for place in learned_places(row)]
    return PackedBatch(
        ids_T=torch.tensor([id for row in rows for id in row.ids]),
        positions_T=torch.cat([torch.arange(len(row.ids)) for row in rows]),
        bounds=bounds,
        supervised_S=torch.tensor([start + place - 1 for start, _, place in learned], dtype=torch.long),
        targets_S=torch.tensor([row.ids[place] for _, row, place in learned], dtype=torch.long),
        chunks=max(1, -(-len(learned) // CHUNK)),
    )


class PackedCausalLM(nn.Module):
    """A causal language model on packed batches: the part that every loss shares.

    `model` is a Hugging Face causal LM; its attention is set to ISOLATED. DeepSpeed wraps this module, so that its
    hooks see every parameter (ZeRO-3 gathers the head through `lm_head`, never behind its back).
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        model.set_attn_implementation(ISOLATED)
        self.model = model

    def over_chunks(self, function: Callable[[nn.Module, Tensor, Tensor], Tensor], batch: PackedBatch) -> list[Tensor]:
        """function(head, hidden_SD, targets_S) for at most CHUNK supervised positions at a time.

        More than one chunk is recomputed in the backward pass, so that one chunk's logits exist at a time. The head is
        called `batch.chunks` times, on empty parts if need be: with ZeRO-3 every call is collective, and ranks that
        called it differently often would wait for each other for ever.
        """
        body = self.model.get_decoder()
        hidden_TD = body(
            input_ids=batch.ids_T[None],
            position_ids=batch.positions_T[None],
            bounds=batch.bounds,
            use_cache=False,
        ).last_hidden_state[0]
        hidden_SD = hidden_TD.index_select(0, batch.supervised_S)
        head = self.model.get_output_embeddings()
        if batch.chunks == 1:
            return [function(head, hidden_SD, batch.targets_S)]
        parts = list(zip(hidden_SD.split(CHUNK), batch.targets_S.split(CHUNK), strict=True))
        parts += [(hidden_SD[:0], batch.targets_S[:0])] * (batch.chunks - len(parts))
        return [checkpoint(function, head, hidden, targets, use_reentrant=False) for hidden, targets in parts]


class SupervisedLoss(PackedCausalLM):
    """A causal language model as a function from a packed batch to its summed loss (fp32 scalar)."""

    def forward(self, batch: PackedBatch) -> Tensor:
        """Sum of the cross-entropies of the supervised positions; 0 (with a graph) if there are none."""
        parts = self.over_chunks(_summed_loss, batch)
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum()


def _summed_loss(head: nn.Module, hidden_SD: Tensor, targets_S: Tensor) -> Tensor:
    logits_SV = head(hidden_SD).float()
    return F.cross_entropy(logits_SV, targets_S, reduction="sum")


def isolated_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    bounds: tuple[int, ...] = (),
    s_aux: Tensor | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each [bounds[i], bounds[i+1]) of a packed row; query is [1, heads, T, head size].

    Registered with transformers under ISOLATED; `bounds` arrives through the model's keyword arguments.

    Raises:
        ConfigError: attention sinks, or rows beyond a sliding window: they would silently be trained as another model.
    """
    if s_aux is not None:
        raise ConfigError("this model's attention has sinks (gpt-oss), which training on packed rows does not know")
    longest = max(end - start for start, end in pairwise(bounds))
    if sliding_window and longest > sliding_window:
        raise ConfigError(
            f"a row of {longest} tokens exceeds the model's attention window of {sliding_window}: lower sft.max_tokens"
        )
    assert (*bounds, 0)[-2:-1] == query.shape[2:3], "packed attention needs the rows' bounds"
    assert attention_mask is None, "packed attention takes no mask"
    grouped = query.shape[1] != key.shape[1]
    parts = [
        F.scaled_dot_product_attention(
            query[:, :, start:end],
            key[:, :, start:end],
            value[:, :, start:end],
            is_causal=True,
            scale=scaling,
            dropout_p=dropout,
            enable_gqa=grouped,
        ).transpose(1, 2)
        for start, end in pairwise(bounds)
    ]
    return torch.cat(parts, dim=1), None


AttentionInterface.register(ISOLATED, isolated_attention)
