"""Origin decides, never text: a document that spells our tags is escaped before it is spliced into a
trajectory.

`</observation>` inside a tool's result becomes `<\\/observation>`; an escape that was there already gains
one more backslash. Only our tags and the prefix `<observation` (a stop string) are touched, so
`unescape(escape(x)) == x` for every x, and no escaped text holds a tag.
"""

import re

from afm_core.data import Tag

TAG_NAMES = "|".join(sorted((tag.value for tag in Tag), key=len, reverse=True))

_PLAIN = re.compile(rf"<(\\*)(?=/?(?:{TAG_NAMES})>|observation)")
_ESCAPED = re.compile(rf"<\\(\\*)(?=/?(?:{TAG_NAMES})>|observation)")
_STRUCTURE = re.compile(rf"<(?:/?(?:{TAG_NAMES})>|observation)")


def escape(text: str) -> str:
    """Text that holds no tag of the language; injective, undone by `unescape`."""
    return _PLAIN.sub(r"<\1\\", text)


def unescape(text: str) -> str:
    """The text before `escape`."""
    return _ESCAPED.sub(r"<\1", text)


def holds_tags(text: str) -> bool:
    """Whether a tag of the language (or the beginning of an observation) stands in the text."""
    return _STRUCTURE.search(text) is not None
