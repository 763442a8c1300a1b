"""A BM25 index over sentences, built once for a set of documents and shared by processes.

Departs from plain document BM25 in two ways. The unit is a sentence, indexed behind its document's title, so that
a query `Bern population` finds the fact and not only the page. And a document whose whole title stands in the query is
lifted above every document that merely shares words with it (what search engines do for navigational queries).

The index lies under `cache/bm25-DIGEST`, is written beside its place and renamed into it (a loser of the race throws
its copy away), and is memory-mapped. Equal scores are ordered by document id.
"""

import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from afm_core.config.environment import lean_imports
from afm_core.data import Document
from afm_core.tools.text import sentences, without_title, words

if TYPE_CHECKING:
    import bm25s

INDEX_VERSION = "1"
_TITLE_LIFT = 1000.0
_STOP_TEXT = """
a an and are as at by do does for from has have how in is it lies of on or that the to was what which with
"""
_STOP_WORDS = frozenset(_STOP_TEXT.split())


@dataclass(frozen=True)
class Hit:
    """One document found: the document, its best sentence, and the score (higher is better)."""

    document: Document
    sentence: str
    score: float


class SentenceIndex:
    """Search over documents by their best sentence. Immutable after construction, so threads may share it."""

    def __init__(self, documents: Sequence[Document], cache: Path) -> None:
        self.documents = sorted(documents, key=lambda document: document.id)
        self._units: list[tuple[int, str]] = [
            (number, sentence) for number, document in enumerate(self.documents) for sentence in _sentences(document)
        ]
        self._owner = np.array([owner for owner, _ in self._units], dtype=np.int64)
        # The units of document n are first[n] up to first[n + 1].
        self._first = np.searchsorted(self._owner, np.arange(len(self.documents) + 1)).tolist()
        self._titles = [tuple(words(document.title)) for document in self.documents]
        self._by_title: dict[tuple[str, ...], list[int]] = {}
        for number, title in enumerate(self._titles):
            self._by_title.setdefault(title, []).append(number)
        self._longest_title = max((len(title) for title in self._titles), default=0)
        self._bm25 = self._open(cache) if self._units else None

    def search(self, query: str, k: int, allowed: np.ndarray | None = None) -> list[Hit]:
        """The k best documents of `query`, best first; `allowed` is a boolean mask over `documents`.

        Documents that share no word with the query are never returned.
        """
        asked = words(query)
        tokens = [word for word in asked if word not in _STOP_WORDS] or asked
        if self._bm25 is None or not tokens:
            return []
        ids = self._bm25.get_tokens_ids(tokens)
        if not ids:
            return []
        scores = np.asarray(self._bm25.get_scores_from_ids(ids), dtype=np.float64)
        matched = scores > 0
        for number in self._named(asked):
            # Longer titles win: "Zurich Airport code" is about the airport, not about the city of Zurich.
            scores[self._owner == number] += _TITLE_LIFT * len(self._titles[number])
        if allowed is not None:
            matched &= allowed[self._owner]
        return self._best(scores, np.flatnonzero(matched), tokens, k)

    def _best(self, scores: np.ndarray, units: np.ndarray, tokens: list[str], k: int) -> list[Hit]:
        # Rounding makes ties exact whatever the order of summation; then the unit's number (document id) decides.
        order = np.lexsort((units, -np.round(scores[units], 4)))
        best: dict[int, int] = {}
        for unit in units[order]:
            best.setdefault(int(self._owner[unit]), int(unit))
            if len(best) == k:
                break
        return [
            Hit(self.documents[owner], self._sentence(owner, unit, tokens), float(scores[unit]))
            for owner, unit in best.items()
        ]

    def _sentence(self, owner: int, fallback: int, tokens: list[str]) -> str:
        """The document's sentence that matches the query beyond the title best; rarer words count more.

        Without this rule `Nicosia country` shows the time zone Asia/Nicosia, where the title stands twice.
        """
        title = self.documents[owner].title
        wanted = set(tokens) - set(self._titles[owner])
        chosen, most = fallback, 0.0
        for unit in range(self._first[owner], self._first[owner + 1]):
            weight = sum(self._rarity(word) for word in wanted & set(words(without_title(self._units[unit][1], title))))
            if weight > most + 1e-9:
                chosen, most = unit, weight
        return self._units[chosen][1]

    def _rarity(self, word: str) -> float:
        assert self._bm25 is not None
        ids = self._bm25.get_tokens_ids([word])
        if not ids:
            return 0.0
        bounds = self._bm25.scores["indptr"]
        return math.log(1 + len(self._units) / max(int(bounds[ids[0] + 1] - bounds[ids[0]]), 1))

    def _named(self, asked: list[str]) -> list[int]:
        found: list[int] = []
        for start in range(len(asked)):
            for end in range(start + 1, min(len(asked), start + self._longest_title) + 1):
                found.extend(self._by_title.get(tuple(asked[start:end]), ()))
        return sorted(set(found))

    def _open(self, cache: Path) -> "bm25s.BM25":
        place = cache / f"bm25-{_digest(self.documents)}"
        if not place.is_dir():
            _build([words(text) for text in self._indexed_texts()], place)
        return _library().BM25.load(str(place), mmap=True)

    def _indexed_texts(self) -> list[str]:
        return [f"{self.documents[owner].title} {sentence}" for owner, sentence in self._units]


def _sentences(document: Document) -> list[str]:
    spans = sentences(document.text) or [(0, 0)]
    return [document.text[start:end] for start, end in spans]


@cache
def _library() -> Any:
    """bm25s, imported by those who search, and without its unused compiler: 70 MB less there, 95 MB elsewhere."""
    with lean_imports(("numba",)):
        import bm25s
    return bm25s


def _digest(documents: Sequence[Document]) -> str:
    content = hashlib.sha256(f"{INDEX_VERSION} {_library().__version__}".encode())
    for document in documents:
        content.update(f"\0{document.id}\0{document.title}\0{document.sha256}".encode())
    return content.hexdigest()[:16]


def _build(texts: list[list[str]], place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        index = _library().BM25(k1=1.2, b=0.5)
        index.index([text or [""] for text in texts], show_progress=False)
        index.save(str(work), show_progress=False)
        os.rename(work, place)
    except OSError:
        if not place.is_dir():
            raise
        # Another process was faster: its index is equal, ours is not needed.
    finally:
        shutil.rmtree(work, ignore_errors=True)
