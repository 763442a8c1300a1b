"""Plain text helpers of the tools: folding names, splitting sentences, cutting to a limit."""

import re
import unicodedata
from functools import lru_cache

CUT_MARK = " [cut]"

_WORD = re.compile(r"(?<!\S)[+.]\w+|\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_ABBREVIATION = re.compile(r"(?:^|[\s(.-])(?:[A-ZÀ-Þ]|St|Ste|Mt|Ft|Dr|Jr|Sr|No|Gen|Col|Capt|Prof)\.$")


@lru_cache(maxsize=65536)
def fold(text: str) -> str:
    """Lower case without accents and with single spaces, so that names compare as people type them."""
    decomposed = unicodedata.normalize("NFKD", text)
    bare = "".join(character for character in decomposed if not unicodedata.combining(character))
    return " ".join(bare.casefold().split())


def words(text: str) -> list[str]:
    """Folded words in order. A leading `+` or `.` stays with its word: `+41` is not the elevation 41."""
    return _WORD.findall(fold(text))


def contains_words(haystack: list[str], needle: list[str]) -> bool:
    """Whether `needle` stands in `haystack` as a run of whole words."""
    size = len(needle)
    return size > 0 and any(haystack[start : start + size] == needle for start in range(len(haystack) - size + 1))


def sentences(text: str) -> list[tuple[int, int]]:
    """(start, end) of every sentence, in characters. `St. Louis` and `O. R. Tambo` end none."""
    spans: list[tuple[int, int]] = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        if "\n" not in match.group() and _ABBREVIATION.search(text[max(0, match.start() - 8) : match.start()]):
            continue
        if text[start : match.start()].strip():
            spans.append((start, match.start()))
        start = match.end()
    if text[start:].strip():
        spans.append((start, len(text.rstrip())))
    return spans


def without_title(sentence: str, title: str) -> str:
    """The sentence without the title it begins with, if it does."""
    return sentence[len(title) + 1 :] if sentence.startswith(f"{title} ") else sentence


def cut(text: str, limit: int) -> tuple[str, bool]:
    """`text` within `limit` characters, the mark of a cut included, and whether it was cut (at a space if near)."""
    if len(text) <= limit:
        return text, False
    if limit <= len(CUT_MARK):
        return text[:limit], True
    kept = text[: limit - len(CUT_MARK)]
    space = kept.rfind(" ")
    if space > len(kept) - 24 and space > 0:
        kept = kept[:space]
    return kept + CUT_MARK, True
