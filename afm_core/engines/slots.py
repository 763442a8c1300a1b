"""A preallocated key-value cache of rows, and the attention that reads it.

The library's dynamic cache copies itself at every step, which costs more than the arithmetic of a small model. Here
every layer owns one tensor of `rows x kv_heads x max_length x head_dim`; a step writes its new keys and values in
place. All tokens of a step form one flat sequence (1, N): first one token of each row that decodes, then the prompt
chunks, one after the other, so the linear layers see no padding. Only the attention knows rows: decoding rows are one
batched call over the longest of them (grouped-query heads are folded into the query axis, so nothing is repeated),
each chunk is a call of its own.

The function is registered with transformers' attention interface under NAME, so any model that goes through that
interface works unchanged.
"""

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "afm_slots"


class SlotCache:
    """Keys and values of `rows` sequences, allocated a layer at a time on first use.

    On a CPU the memory is zero pages of the operating system: a row costs only what was written to it.
    """

    def __init__(self, rows: int, max_length: int, device: torch.device) -> None:
        self.rows = rows
        self.max_length = max_length
        self.device = device
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}

    def layer(self, index: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Key and value tensors of a layer, each (rows, kv_heads, max_length, head_dim); `like` is (1, kv, N, dim)."""
        if index not in self.keys:
            shape = (self.rows, like.shape[1], self.max_length, like.shape[3])
            self.keys[index] = self._zeros(shape, like.dtype)
            self.values[index] = self._zeros(shape, like.dtype)
        return self.keys[index], self.values[index]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of a row to another row."""
        for tensor in (*self.keys.values(), *self.values.values()):
            tensor[target, :, :length] = tensor[source, :, :length]

    def wipe(self, row: int) -> None:
        """Zero a row. Needed only after values that are not finite: a masked NaN would still spread."""
        for tensor in (*self.keys.values(), *self.values.values()):
            tensor[row] = 0

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self.device.type == "cpu" and dtype == torch.float32:
            return torch.from_numpy(_untouched(shape))
        return torch.zeros(shape, dtype=dtype, device=self.device)


def _untouched(shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Zeros of which untouched pages cost nothing: small pages, for numpy's own zeros ask for pages of 2 MiB, of which
    the beginning of every row would touch all.
    """
    memory = mmap.mmap(-1, math.prod(shape) * 4)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=np.float32).reshape(shape)


@dataclass(frozen=True)
class Chunk:
    """Consecutive new tokens of one row: positions start .. start + length - 1."""

    row: int
    start: int
    length: int


@dataclass
class StepPlan:
    """Which row and position every token of one flat step has.

    decode: rows that get one token, ascending, with the position of that token; chunks: longer runs, in their order.
    """

    cache: SlotCache
    decode: Sequence[tuple[int, int]]
    chunks: Sequence[Chunk]
    rows: torch.Tensor = field(init=False)
    positions: torch.Tensor = field(init=False)
    _masks: dict[tuple[str, int, int], torch.Tensor] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        rows = [row for row, _ in self.decode] + [c.row for c in self.chunks for _ in range(c.length)]
        positions = [position for _, position in self.decode]
        positions += [c.start + i for c in self.chunks for i in range(c.length)]
        device = self.cache.device
        self.rows = torch.tensor(rows, dtype=torch.long, device=device)
        self.positions = torch.tensor(positions, dtype=torch.long, device=device)
        self._layout_decode(device)

    def _layout_decode(self, device: torch.device) -> None:
        """Read the decoding rows as a slice of the cache while at least half of the slice decodes, else gather them."""
        if not self.decode:
            return
        rows = [row for row, _ in self.decode]
        self.span = max(position for _, position in self.decode) + 1
        self.sliced = 2 * len(rows) > max(rows) + 1
        count = max(rows) + 1 if self.sliced else len(rows)
        lane = {row: index for index, row in enumerate(rows)} if self.sliced else {}
        lanes = [lane.get(row, 0) for row in range(count)] if self.sliced else list(range(count))
        ends = torch.ones(count, dtype=torch.long)  # a hole attends to position 0 and is thrown away
        for index, (row, position) in enumerate(self.decode):
            ends[row if self.sliced else index] = position + 1
        self.ends = ends.to(device)
        self.lanes = torch.tensor(lanes, dtype=torch.long, device=device)
        self.row_index = torch.tensor(rows, dtype=torch.long, device=device)
        self.dense = len(rows) == count

    def decode_mask(self, window: int, dtype: torch.dtype) -> torch.Tensor:
        """Additive mask (lanes, 1, 1, span); window 0 is full attention. Made once a step, shared by the layers."""
        key = ("decode", window, 0)
        if key not in self._masks:
            column = torch.arange(self.span, device=self.ends.device)[None]
            hidden = column >= self.ends[:, None]
            if window:
                hidden = hidden | (column < self.ends[:, None] - window)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
            self._masks[key] = mask[:, None, None, :]
        return self._masks[key]

    def chunk_mask(self, index: int, window: int) -> torch.Tensor:
        """Boolean causal mask (length, start + length) of a chunk; True may be seen."""
        key = ("chunk", window, index)
        if key not in self._masks:
            chunk = self.chunks[index]
            device = self.positions.device
            row = torch.arange(chunk.start, chunk.start + chunk.length, device=device)[:, None]
            column = torch.arange(chunk.start + chunk.length, device=device)[None]
            mask = column <= row
            if window:
                mask = mask & (column > row - window)
            self._masks[key] = mask
        return self._masks[key]


def slot_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Write the step's keys and values, attend over the rows' whole past.

    query (1, heads, N, dim), key and value (1, kv_heads, N, dim) -> (1, N, heads, dim). `slots` is the StepPlan.
    """
    plan: StepPlan = kwargs["slots"]
    if kwargs.get("softcap") is not None:
        raise ValueError("attention soft-capping is not supported by the transformers engine; use vllm")
    keys, values = plan.cache.layer(module.layer_idx, key)
    keys[plan.rows, :, plan.positions] = key[0].transpose(0, 1)
    values[plan.rows, :, plan.positions] = value[0].transpose(0, 1)
    window = kwargs.get("sliding_window") or 0
    output = torch.empty_like(query[0].transpose(0, 1), memory_format=torch.contiguous_format)  # (N, heads, dim)
    count = len(plan.decode)
    if count:
        output[:count] = _decode(plan, query[0, :, :count], keys, values, window, scaling)
    at = count
    for index, chunk in enumerate(plan.chunks):
        end = chunk.start + chunk.length
        whole = chunk.start == 0 and not window
        attended = scaled_dot_product_attention(
            query[:, :, at : at + chunk.length],
            keys[chunk.row : chunk.row + 1, :, :end],
            values[chunk.row : chunk.row + 1, :, :end],
            attn_mask=None if whole else plan.chunk_mask(index, window),
            is_causal=whole,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        output[at : at + chunk.length] = attended[0].transpose(0, 1)
        at += chunk.length
    return output[None], None


def _decode(
    plan: StepPlan, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int, scaling: float | None
) -> torch.Tensor:
    """One token of each decoding row: query (heads, n, dim) -> (n, heads, dim)."""
    heads, _, dim = query.shape
    kv_heads = keys.shape[1]
    lanes = query.transpose(0, 1)
    if not plan.dense:
        lanes = lanes[plan.lanes]
    if plan.sliced:
        past_keys, past_values = keys[: len(lanes), :, : plan.span], values[: len(lanes), :, : plan.span]
    else:
        past_keys, past_values = keys[plan.row_index, :, : plan.span], values[plan.row_index, :, : plan.span]
    grouped = lanes.reshape(len(lanes), kv_heads, heads // kv_heads, dim)
    mask = plan.decode_mask(window, query.dtype)
    attended = scaled_dot_product_attention(grouped, past_keys, past_values, attn_mask=mask, scale=scaling)
    attended = attended.reshape(len(lanes), heads, dim)
    return attended if plan.dense else attended[plan.row_index]


AttentionInterface.register(NAME, slot_attention)
