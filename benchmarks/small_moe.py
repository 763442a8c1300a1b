"""A small Qwen3-MoE and three real domains to train it on, for the studies of experts: facts, code, prose.

Facts are the world corpus, code the Python sources and prose the descriptions of installed packages.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from afm_core.config import CorpusConfig
from afm_core.taskcraft import corpus_documents

DOMAINS = ("facts", "code", "prose")
LENGTH = 256
VOCABULARY = 4096


@dataclass(frozen=True)
class Texts:
    """Documents of a domain as token ids: to train the model, to fine-tune it, to choose by, to report."""

    base: list[list[int]]
    more: list[list[int]]
    dev: list[list[int]]
    test: list[list[int]]


def documents(domain: str) -> list[str]:
    """The texts of a domain in a fixed order, mixed."""
    packages = Path(np.__file__).parents[1]
    if domain == "facts":
        found = [one.text for one in corpus_documents(CorpusConfig())]
    elif domain == "code":
        names = ("transformers/models", "sklearn", "pandas/core", "sympy", "mlflow", "networkx")
        paths = [path for name in names for path in sorted((packages / name).rglob("*.py"))]
        found = [path.read_text(errors="replace")[:6000] for path in paths]
    else:
        paths = sorted(packages.glob("*.dist-info/METADATA"))
        found = [path.read_text(errors="replace").partition("\n\n")[2][:30_000] for path in paths]
    kept = [text for text in found if len(text) > 100]
    random.Random(0).shuffle(kept)
    return kept


def prepare(work: Path, base_tokens: int, more_tokens: int) -> tuple[Any, dict[str, Texts]]:
    """The tokenizer, trained on the three domains in equal parts, and the domains' documents."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    texts = {domain: documents(domain) for domain in DOMAINS}
    path = work / "tokenizer.json"
    if not path.exists():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=4096, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
        )
        sample = [piece for domain in DOMAINS for piece in _characters(texts[domain], 1_500_000)]
        tokenizer.train_from_iterator(sample, trainer)
        tokenizer.save(str(path))
    tokenizer = Tokenizer.from_file(str(path))
    return tokenizer, {domain: _split(texts[domain], tokenizer, base_tokens, more_tokens) for domain in DOMAINS}


def _characters(texts: Sequence[str], limit: int) -> list[str]:
    taken, total = [], 0
    for text in texts:
        if total >= limit:
            break
        taken.append(text)
        total += len(text)
    return taken


def _split(texts: Sequence[str], tokenizer: Any, base_tokens: int, more_tokens: int) -> Texts:
    """Whole documents: 40 to report and 20 to choose by first, then the fine-tuning's, then the base's."""
    rows = [tokenizer.encode(text).ids for text in texts[:60]]
    rest = iter(texts[60:])
    parts: list[list[list[int]]] = []
    for limit in (more_tokens, base_tokens):
        part: list[list[int]] = []
        while sum(map(len, part)) < limit and (text := next(rest, None)) is not None:
            part.append(tokenizer.encode(text).ids)
        parts.append(part)
    more, base = parts
    return Texts(base or more, more, [row[:1024] for row in rows[40:]], [row[:1024] for row in rows[:40]])


def small_moe(vocabulary: int = VOCABULARY, experts: int = 16) -> Any:
    """The model with random weights: 4 layers of 192, 2 experts of 256 a token, about 11M parameters."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=vocabulary,
        hidden_size=192,
        intermediate_size=512,
        moe_intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=experts,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        router_aux_loss_coef=0.01,
    )
    return Qwen3MoeForCausalLM(config)


def stream(parts: Sequence[Sequence[Sequence[int]]], tokens: int, seed: int) -> list[Tensor]:
    """Batches [8, LENGTH] that take of every part in turn, documents joined in a seeded order."""
    generator = random.Random(seed)
    flat = []
    for rows in parts:
        order: list[int] = []
        while len(order) < tokens // len(parts) + LENGTH:
            mixed = list(rows)
            generator.shuffle(mixed)
            order += [token for row in mixed for token in row]
        flat.append([order[start : start + LENGTH] for start in range(0, tokens // len(parts), LENGTH)])
    rows = [row for group in zip(*flat, strict=True) for row in group]
    return [torch.tensor(rows[start : start + 8]) for start in range(0, len(rows) - 7, 8)]


def train(model: Any, batches: Sequence[Tensor], rate: float, router_loss: bool, say: str) -> None:
    """AdamW, linear warm-up over a tenth, cosine to a tenth. `router_loss`: the load-balancing loss is part of it."""
    trainable = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    model.train()
    for step, ids in enumerate(batches):
        warm = min(1.0, (step + 1) / max(1, len(batches) // 10))
        decay = 0.1 + 0.45 * (1 + np.cos(np.pi * step / len(batches)))
        for group in optimizer.param_groups:
            group["lr"] = rate * warm * decay
        loss = model(ids, labels=ids, output_router_logits=router_loss).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"  {say} {step}/{len(batches)} loss {loss.item():.3f}", flush=True)
    model.eval()
