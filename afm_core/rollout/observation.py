"""A tool's result as the policy sees it: cut to a number of tokens, escaped, encoded as plain content."""

from typing import Any

from afm_core.coa import escape, render
from afm_core.data import Origin, Segment, Tag
from afm_core.tokens import encode_text

_GAP = " ... "
_HEAD_SHARE = 2 / 3


def observation_segment(tokenizer: Any, text: str, limit: int) -> Segment:
    """The observation of a result. `text` stays raw, cut to `limit` tokens; token_ids hold the tags too."""
    segment = Segment(origin=Origin.TOOL, tag=Tag.OBSERVATION, text=cut(tokenizer, text, limit))
    return segment.model_copy(update={"token_ids": tuple(encode_text(tokenizer, render(segment)))})


def cut(tokenizer: Any, text: str, limit: int) -> str:
    """The text, or its head and tail around ` ... ` so that its escaped form has at most `limit` tokens.

    Cutting may change how the rest is tokenised, so the result is measured again and cut further if need be.
    """
    if _length(tokenizer, text) <= limit:
        return text
    ids = encode_text(tokenizer, text)
    keep = limit
    while keep > 0:
        head = round(keep * _HEAD_SHARE)
        tail = keep - head
        shorter = _decode(tokenizer, ids[:head]).rstrip("\ufffd") + _GAP
        shorter += _decode(tokenizer, ids[len(ids) - tail :]).lstrip("\ufffd") if tail else ""
        over = _length(tokenizer, shorter) - limit
        if over <= 0:
            return shorter
        keep -= over
    return ""


def _length(tokenizer: Any, text: str) -> int:
    return len(encode_text(tokenizer, escape(text)))


def _decode(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
