"""Model directories: Hugging Face layout, the same bytes for the same weights, tied weights stored once.

`AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load them. The tokenizer is never saved
again by code that could reformat it: its files are copied from the base model.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROVENANCE = "afm.json"

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)

SHARD_BYTES = 5_000_000_000

_VOLATILE = (
    "_name_or_path",
    "_model_name_or_path",
    "quantization_config",
    "torch_dtype",
    "is_local",
    "local_files_only",
)
"""Keys that say where a model came from on some machine; they would change the bytes, not the model."""


def save_model(
    state: Mapping[str, Any], base: Path, directory: Path, provenance: Mapping[str, Any], dtype: str
) -> None:
    """Write a model directory: weights `state` (names of the causal LM), everything else from the base directory.

    dtype: "float32" or "bfloat16", the format of the weights. provenance: written as afm.json, JSON values only.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = json.loads((base / "config.json").read_text())
    write_weights(state, directory, tied=bool(config.get("tie_word_embeddings")), dtype=dtype)
    write_json(directory / "config.json", clean({**config, "dtype": dtype, "use_cache": True}))
    copy_tokenizer(base, directory)
    generation = base / "generation_config.json"
    if generation.exists():
        write_json(directory / generation.name, clean(json.loads(generation.read_text())))
    write_json(directory / PROVENANCE, provenance)


def write_weights(state: Mapping[str, Any], directory: Path, *, tied: bool, dtype: str) -> None:
    """model.safetensors, or shards of 5 GB with an index. Tensors may lie on any device; a tied head is left out."""
    import torch
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file

    wanted = getattr(torch, dtype)
    names = sorted(name for name in state if not (tied and name == "lm_head.weight"))
    tensors = {name: state[name].detach().to("cpu", wanted).contiguous() for name in names}
    plan = split_torch_state_dict_into_shards(tensors, max_shard_size=SHARD_BYTES)
    for file, members in plan.filename_to_tensors.items():
        save_file({name: tensors[name] for name in members}, directory / file, metadata={"format": "pt"})
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        write_json(directory / "model.safetensors.index.json", index)


def copy_tokenizer(base: Path, directory: Path) -> None:
    """The base model's tokenizer files and chat template."""
    for name in TOKENIZER_FILES:
        if (base / name).exists():
            shutil.copyfile(base / name, directory / name)


def write_json(path: Path, value: Any) -> None:
    """Canonical JSON text: sorted keys, two spaces, a final newline."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def clean(values: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the keys that name a machine."""
    return {key: value for key, value in values.items() if key not in _VOLATILE}


def link_or_copy(source: Path, target: Path) -> None:
    """A file under a second name; copied where the file system has no hard links. Never follow with a write."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
