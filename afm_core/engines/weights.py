"""The identity of a model's weights: one SHA-256 over names, number formats, shapes and bytes.

Trainer and engines compute it over what they hold or read, so that "the update reached the engine" is a comparison of
two strings. Tensors are hashed on their own, in threads, and the digests are hashed in the order of the names: half a
gigabyte takes a fraction of a second. A tied output head counts once, whether or not the state lists it.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

HEAD = "lm_head.weight"
"""The output head's name in a causal language model's state."""

_MOST_THREADS = 4


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """The digest (64 hex digits) of tensors by name; they may lie on any device, in any order."""
    return _digest(state, state.__getitem__)


def directory_digest(directory: Path) -> str:
    """The digest of a model directory's safetensors files: that of the state they were written from.

    Raises FileNotFoundError if there are none.
    """
    from safetensors import safe_open

    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{directory} holds no safetensors weights")
    readers = [safe_open(file, framework="pt") for file in files]
    where = {name: reader for reader in readers for name in reader.keys()}  # noqa: SIM118 - not a mapping
    return _digest(where, lambda name: where[name].get_tensor(name))


def _digest(names: Iterable[str], read: Callable[[str], Tensor]) -> str:
    ordered = sorted(names)
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
        parts = dict(zip(ordered, threads.map(lambda name: _describe(read(name)), ordered), strict=True))
    if HEAD in parts and parts[HEAD] in [part for name, part in parts.items() if name != HEAD]:
        del parts[HEAD]
    whole = hashlib.sha256()
    for name, part in parts.items():
        whole.update(f"{name}\0{part}\n".encode())
    return whole.hexdigest()


def _describe(tensor: Tensor) -> str:
    plain = tensor.detach().to("cpu").contiguous()
    content = hashlib.sha256(plain.reshape(-1).view(torch.uint8).numpy())
    return f"{plain.dtype}\0{tuple(plain.shape)}\0{content.hexdigest()}"
