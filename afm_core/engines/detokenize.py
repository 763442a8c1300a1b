"""Text of a growing list of ids, the stop strings in it, and the ids that end a turn.

Ids are decoded a few at a time: the text of the last settled token and everything after it, minus the text of the
settled token alone (a tokenizer may treat the first token of a call differently). Bytes of an unfinished character
decode to U+FFFD; they stay unsettled until they are whole, but stop strings are looked for in them too.
"""

from collections.abc import Sequence
from typing import Any

_UNFINISHED = "\ufffd"


class StopScanner:
    """Incremental decoding of one generation; special tokens leave no text."""

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        if any(not string for string in stop):
            raise ValueError("a stop string must not be empty")
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._longest = max((len(string) for string in stop), default=0)
        self._ids: list[int] = []
        self._context = 0
        self._settled = 0
        self._text = ""
        self._tail = ""

    @property
    def text(self) -> str:
        """Everything decoded so far, an unfinished character included as U+FFFD."""
        return self._text + self._tail

    def push(self, token_id: int) -> str | None:
        """Add an id. Returns the stop string that it completed (the one that ends first), or None."""
        searched = len(self._text)
        self._ids.append(token_id)
        known = self._decode(self._ids[self._context : self._settled])
        grown = self._decode(self._ids[self._context :])
        self._tail = grown[len(known) :]
        if self._tail and not self._tail.endswith(_UNFINISHED):
            self._text += self._tail
            self._tail = ""
            self._context, self._settled = self._settled, len(self._ids)
        return self._find(max(0, searched - self._longest + 1))

    def _find(self, start: int) -> str | None:
        text = self.text
        found = [(text.find(string, start) + len(string), string) for string in self._stop if string in text[start:]]
        return min(found)[1] if found else None

    def _decode(self, ids: Sequence[int]) -> str:
        return decode(self._tokenizer, ids)


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of ids, special tokens excluded and spaces left as they are."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def end_ids(tokenizer: Any, generation_config: Any) -> frozenset[int]:
    """Ids that end a turn: the tokenizer's and those of the model's generation configuration (None: it has none)."""
    ends = generation_config.eos_token_id if generation_config else None
    listed = ends if isinstance(ends, list) else [ends]
    return frozenset(int(end) for end in (*listed, tokenizer.eos_token_id) if end is not None)
