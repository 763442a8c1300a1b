"""Text to ids: content never yields a special token, template parts do.

A user's question, a document or a tool's result may spell `<|im_end|>`; encoded as content it becomes
ordinary tokens, so that no text can end a turn or open another. Only the chat template's own parts may hold
special tokens.
"""

from collections.abc import Iterable
from itertools import pairwise
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

_USER = "\ue000user\ue001"
_ASSISTANT = "\ue000assistant\ue001"
"""Private-use characters: no template spells them, and none strips them as white space."""

_SWITCH = Lock()
_SPECIAL_IDS: WeakKeyDictionary[Any, dict[int, str]] = WeakKeyDictionary()


def special_tokens(tokenizer: Any) -> dict[int, str]:
    """All special tokens of a tokenizer: id to text."""
    known = _SPECIAL_IDS.get(tokenizer)
    if known is None:
        known = {id: token.content for id, token in tokenizer.added_tokens_decoder.items() if token.special}
        known.update(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
        _SPECIAL_IDS[tokenizer] = known
    return known


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Ids of content, special tokens disabled; decoding them gives the text back (with a byte-level
    tokenizer).

    Raises ValueError if the tokenizer cannot be kept from yielding a special token.
    """
    ids = _ids(tokenizer, text, split_special_tokens=True)
    special = special_tokens(tokenizer)
    if special.keys().isdisjoint(ids):
        return ids
    ids = [id for piece in _broken(text, special.values()) for id in _ids(tokenizer, piece, True)]
    # An unknown character yields the unknown token, which is special but carries no power of the template.
    if not (special.keys() - {tokenizer.unk_token_id}).isdisjoint(ids):
        raise ValueError("this tokenizer yields special tokens for plain text; it cannot be used safely")
    return ids


def chat_prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    """Ids of a chat whose only turn is the user's `prompt`, up to and with the assistant's header.

    The template is rendered around a sentinel, and its parts and the prompt are encoded apart: the border
    of the prompt is exact, and a prompt that spells template tokens changes nothing. Raises ValueError if
    there is no usable template.
    """
    if not tokenizer.chat_template:
        raise ValueError("the tokenizer has no chat template: set one, e.g. from the instruct model's tokenizer")
    rendered = _render(tokenizer, [{"role": "user", "content": _USER}], header=True)
    parts = rendered.split(_USER)
    if len(parts) != 2:
        raise ValueError(f"the chat template shows the user's text {len(parts) - 1} times instead of once")
    before, after = parts
    return [
        *_ids(tokenizer, before, split_special_tokens=False),
        *encode_text(tokenizer, prompt),
        *_ids(tokenizer, after, split_special_tokens=False),
    ]


def end_of_turn_id(tokenizer: Any) -> int:
    """The token with which the template ends an assistant's turn; the end-of-text token if it has none.

    Raises ValueError if the tokenizer has neither.
    """
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": _USER}, {"role": "assistant", "content": _ASSISTANT}]
        rest = _render(tokenizer, turns, header=False).rpartition(_ASSISTANT)
        if rest[1]:
            special = special_tokens(tokenizer)
            found = [id for id in _ids(tokenizer, rest[2], split_special_tokens=False) if id in special]
            if found:
                return found[0]
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has neither a template that ends turns nor an end-of-text token")
    return int(tokenizer.eos_token_id)


def encode_template(tokenizer: Any, text: str) -> list[int]:
    """Ids of text that a chat template wrote: special tokens are recognised. Never use it for content."""
    return _ids(tokenizer, text, split_special_tokens=False)


def _ids(tokenizer: Any, text: str, split_special_tokens: bool) -> list[int]:
    if not text:
        return []
    # The switch is a field of the shared backend tokenizer: two threads must not turn it against each other.
    with _SWITCH:
        encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=split_special_tokens)
    return list(encoded["input_ids"])


def _render(tokenizer: Any, turns: list[dict[str, str]], header: bool) -> str:
    rendered: str = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=header)
    return rendered


def _broken(text: str, contents: Iterable[str]) -> list[str]:
    """The text cut one character into every special token's text, so that no piece spells one."""
    cuts = {0, len(text)}
    for content in contents:
        start = text.find(content)
        while start >= 0:
            cuts.add(start + 1)
            start = text.find(content, start + 1)
    places = sorted(cuts)
    return [text[a:b] for a, b in pairwise(places)]
