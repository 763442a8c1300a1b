"""The texts of a domain: what a user hands in, as documents, and as padded batches of token ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from afm_core.config import ConfigError
from afm_core.data import read_jsonl

COLUMN = "text"


def read_texts(path: Path) -> list[str]:
    """The documents of a file: JSONL or parquet with a column `text`; anything else is one document of plain text.

    Raises:
        ConfigError: unreadable, empty, or a row without text; names the file and the row.
    """
    if path.suffix == ".jsonl":
        found = [_text(row, f"{path}, row {number}") for number, row in read_jsonl(path)]
    elif path.suffix == ".parquet":
        found = _parquet(path)
    else:
        try:
            found = [path.read_text(encoding="utf-8-sig")]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path} as text: {error}") from error
    documents = [text for text in found if text.strip()]
    if not documents:
        raise ConfigError(f"{path} has no text in it")
    return documents


def _text(row: Any, place: str) -> str:
    if not isinstance(row, dict) or not isinstance(row.get(COLUMN), str):
        raise ConfigError(f"{place}: expected an object with a string {COLUMN!r}")
    return str(row[COLUMN])


def _parquet(path: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
        if COLUMN not in schema.names:
            raise ConfigError(f"{path} has no column {COLUMN!r}; it has {', '.join(schema.names)}")
        return [text or "" for text in pq.read_table(path, columns=[COLUMN]).column(COLUMN).to_pylist()]
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"cannot read {path} as parquet: {error}") from error


@dataclass(frozen=True)
class TextBatch:
    """ids, documents (their numbers) and mask (what is no padding), all [rows, length]."""

    ids: Tensor
    documents: Tensor
    mask: Tensor


def batches(texts: Sequence[str], tokenizer: Any, tokens: int, sequence: int, batch: int) -> Iterator[TextBatch]:
    """The first `tokens` tokens of the texts in sequences of at most `sequence` tokens, about `batch` tokens a batch.

    A longer document goes on in the next sequence, under the same number. Special tokens are not added, and what looks
    like one in a text is text.
    """
    rows: list[tuple[int, list[int]]] = []
    left = tokens
    for number, text in enumerate(texts):
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"][:left]
        left -= len(ids)
        for start in range(0, len(ids), sequence):
            rows.append((number, ids[start : start + sequence]))
            if max(len(row) for _, row in rows) * len(rows) >= batch:
                yield _padded(rows)
                rows = []
        if left <= 0:
            break
    if rows:
        yield _padded(rows)


def _padded(rows: Sequence[tuple[int, list[int]]]) -> TextBatch:
    length = max(len(row) for _, row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for place, (_, row) in enumerate(rows):
        ids[place, : len(row)] = torch.tensor(row)
        mask[place, : len(row)] = True
    return TextBatch(ids, torch.tensor([number for number, _ in rows])[:, None].expand_as(ids), mask)
