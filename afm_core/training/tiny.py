"""The tiny base model: a randomly initialised Llama of about a million parameters with its own small tokenizer.

It knows nothing; it is small enough to learn the format of the micro world within the smoke profile's minutes. The
tokenizer is a byte-level BPE (nothing is unknown to it) trained on the corpus and on the words of the agent language;
tags stay ordinary text. Everything is a function of the documents and the seed: the same input gives the same bytes.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from afm_core.coa import closed_book_prompt, grammar_for, prompt
from afm_core.config import GrammarName, PromptStyle
from afm_core.data import Document, Tag
from afm_core.training.export import PROVENANCE, clean, write_json, write_weights

VOCABULARY = 1536
CONTEXT = 2048

END_OF_TEXT, START_OF_TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_SPLIT = r"</?[\p{L}_]+>|'s|'t| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}<]+|<|\s+(?!\S)|\s+"
"""Whole tags (they become one token each, but an ordinary one), words with their leading space, single digits."""

_LANGUAGE_REPEATS = 50
"""The language's words are in every trajectory, but only a few times in the corpus: they count this often."""


def make_tiny(documents: Sequence[Document], directory: Path, seed: int) -> int:
    """Write the tiny model and its tokenizer; returns the number of parameters."""
    tokenizer = train_tokenizer(documents)
    tokenizer.save_pretrained(directory)
    _settle_tokenizer(directory)
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in _special_names().items()}
    config = tiny_config(len(tokenizer), ids)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    values = clean(config.to_dict())
    values.update(architectures=["LlamaForCausalLM"], dtype="float32")
    write_json(directory / "config.json", values)
    write_json(directory / "generation_config.json", ids)
    write_weights(model.state_dict(), directory, tied=True, dtype="float32")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    write_json(directory / PROVENANCE, {"name": "tiny", "weights": "random", "seed": seed, "parameters": parameters})
    return parameters


def tiny_config(vocabulary: int, ids: dict[str, int]) -> LlamaConfig:
    """The shape: 4 layers of 128, 4 heads, 2 key-value heads, tied embeddings."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        **ids,
    )


def train_tokenizer(documents: Sequence[Document]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most VOCABULARY tokens over the documents and the language's own words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        special_tokens=[END_OF_TEXT, START_OF_TURN, END_OF_TURN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(documents), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START_OF_TURN,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def _special_names() -> dict[str, str]:
    return {"bos_token_id": START_OF_TURN, "eos_token_id": END_OF_TURN, "pad_token_id": END_OF_TEXT}


def _texts(documents: Sequence[Document]) -> Iterator[str]:
    for document in sorted(documents, key=lambda document: document.id):
        yield f"{document.title}: {document.text}"
        yield from (f"<{tag}>{document.title}</{tag}>" for tag in (Tag.WEB_SEARCH, Tag.CRAWL_PAGE))
    for _ in range(_LANGUAGE_REPEATS):
        yield "system\nuser\nassistant\n"
        yield from (f"<{tag}></{tag}>" for tag in Tag)
        yield closed_book_prompt("Who? What? Which? Where? How many?")
        for name in GrammarName:
            yield prompt("Which? What? How many?", grammar_for(name), PromptStyle.BRIEF)
        yield prompt("Which? What? How many?", grammar_for(GrammarName.WEB), PromptStyle.FULL)


def _settle_tokenizer(directory: Path) -> None:
    """Rewrite the settings canonically, without what names a machine or a library's version."""
    import json

    path = directory / "tokenizer_config.json"
    settings: dict[str, Any] = clean(json.loads(path.read_text()))
    settings.pop("transformers_version", None)
    write_json(path, settings)
