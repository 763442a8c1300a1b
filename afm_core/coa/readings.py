"""Reading scores, codes and arguments out of an element's text. Lenient where authors and models write
freely.
"""

import json
import re
from typing import Any

_SCORE = re.compile(r"\bscore\b[^0-9]{0,40}?(\d{1,3})", re.IGNORECASE)
_LEADING = re.compile(r"\s*([1-4])\s*(?:$|[/:;,.)\-](?!\d)|/\s*4)")
_POOR = re.compile(r"\bpoor\b", re.IGNORECASE)
_FENCE = "```"


def double_check_score(text: str) -> int | None:
    """The credibility score, 1 to 4, that a double check gives; None if it gives none that can be read.

    Known forms: "The score this time is:4", "Score: 3/4", a text that is or starts with the number ("4",
    "4: fits"). The last score in the text counts.
    """
    found = _SCORE.findall(text)
    if found:
        score = int(found[-1])
        return score if 1 <= score <= 4 else None
    leading = _LEADING.match(text)
    return int(leading.group(1)) if leading else None


def says_poor(text: str) -> bool:
    """Whether a reflection scores anything as poor."""
    return _POOR.search(text) is not None


def same_answer(first: str, second: str) -> bool:
    """Equal but for white space and case."""
    return " ".join(first.split()).casefold() == " ".join(second.split()).casefold()


def python_and_stdin(text: str) -> tuple[str, str] | None:
    """(source, standard input) of a code call: one ```py (or ```python) block, then at most one ```sh
    block.
    """
    body = text.strip()
    for opening in ("```py\n", "```python\n"):
        if body.startswith(opening) and body.endswith(_FENCE) and len(body) > len(opening) + len(_FENCE) - 1:
            inner = body[len(opening) : -len(_FENCE)]
            source, divider, stdin = inner.partition("\n```\n```sh\n")
            if not divider:
                source, divider, stdin = inner.partition("\n```\n\n```sh\n")
            return (source.rstrip("\n"), stdin) if source.strip() else None
    return None


def json_arguments(text: str) -> dict[str, Any] | None:
    """The object of a call with JSON arguments: one ```json block (the fence may be left out); None if
    malformed.
    """
    body = text.strip()
    if body.startswith("```json") and body.endswith(_FENCE):
        body = body[len("```json") : -len(_FENCE)]
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
