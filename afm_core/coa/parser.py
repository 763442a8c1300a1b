"""The parser: a total function on strings, linear in their length, that never raises.

One pass of a regular expression without repetition finds the language's tags; everything else is text,
`<b>` included. Recovery: a tag inside an element is text of that element if the element is closed later and
not opened again before; otherwise the element counts as unclosed and ends there. So one forgotten closing
tag costs one element, not the rest.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass

from afm_core.coa.escape import TAG_NAMES, unescape
from afm_core.coa.violations import Violation, ViolationCode
from afm_core.data import Origin, Tag

_TAGS = re.compile(rf"<(/?)({TAG_NAMES})>|<observation")
_TAG_SHAPE = re.compile(r"</?[A-Za-z_]\w{0,63}>")


@dataclass(frozen=True)
class Element:
    """One element of the language. (start, end) is its range of characters, tags included, in its segment's
    text.

    `text` is what stands between the tags (an observation's is unescaped). origin is None for plain parsed
    text.
    """

    tag: Tag
    text: str
    segment: int = 0
    start: int = 0
    end: int = 0
    origin: Origin | None = None
    closed: bool = True


@dataclass(frozen=True)
class Parsed:
    """What a text holds: elements in order, and what is wrong with it."""

    elements: tuple[Element, ...]
    violations: tuple[Violation, ...]


@dataclass(frozen=True)
class _Token:
    """A tag in the text. `whole` is False for a `<observation` without its bracket."""

    tag: Tag
    closing: bool
    start: int
    end: int
    whole: bool = True


def parse(text: str, *, segment: int | None = None, sampled: bool = False) -> Parsed:
    """Parse any text. Violations' and elements' `segment` is the given one, else the element's ordinal.

    sampled: the text was written by the model, so an observation in it is forged.
    """
    run = _Run(text, segment, Origin.SAMPLED if sampled else None)
    run.parse()
    return Parsed(tuple(run.elements), tuple(run.violations))


def _tokens(text: str) -> list[_Token]:
    found = []
    for match in _TAGS.finditer(text):
        name = match.group(2)
        tag = Tag(name) if name else Tag.OBSERVATION
        found.append(_Token(tag, bool(match.group(1)), match.start(), match.end(), whole=name is not None))
    return found


class _Run:
    """The state of one parse."""

    def __init__(self, text: str, segment: int | None, origin: Origin | None) -> None:
        self.text = text
        self.origin = origin
        self.elements: list[Element] = []
        self.violations: list[Violation] = []
        self._segment = segment
        self._tokens = _tokens(text)
        self._places: dict[tuple[Tag, bool], list[int]] = {}
        for index, token in enumerate(self._tokens):
            if token.whole:
                self._places.setdefault((token.tag, token.closing), []).append(index)
        self._answered = False
        self._nested_close = -1

    def parse(self) -> None:
        """Walk over the tags: outside an element, or inside `opened`."""
        opened: _Token | None = None
        reached = 0
        for index, token in enumerate(self._tokens):
            if self.origin is Origin.SAMPLED and token.tag is Tag.OBSERVATION and not token.closing:
                self._report(ViolationCode.FORGED_OBSERVATION, "the model wrote an observation", token)
            if opened is not None and not self._ends(opened, token, index):
                continue
            if opened is not None:
                closes = token.closing and token.tag is opened.tag
                self._close(opened, token, closes)
                reached = token.end if closes else token.start
                opened = None
                if closes:
                    continue
            self._between(reached, token.start)
            reached = token.end
            if token.closing:
                self._report(ViolationCode.UNOPENED_TAG, f"</{token.tag}> closes nothing", token)
            elif token.whole:
                opened = token
            elif self.origin is None:
                self._report(ViolationCode.STRAY_TEXT, "an unfinished <observation tag", token)
        if opened is not None:
            self._close(opened, None, False)
        else:
            self._between(reached, len(self.text))

    def _ends(self, opened: _Token, token: _Token, index: int) -> bool:
        """Whether `token` ends the open element; if not, it is reported as part of its text."""
        if token.tag is opened.tag:
            if token.closing:
                return True
            if not token.whole:
                return False
        close = self._next(opened.tag, True, index)
        again = self._next(opened.tag, False, index - 1)
        if close is None or (again is not None and again < close):
            return not token.closing and token.whole
        if index == self._nested_close:
            return False
        inner = self._next(token.tag, True, index)
        nested = not token.closing and token.whole and inner is not None and inner < close
        if nested and inner is not None:
            self._nested_close = inner
        code = ViolationCode.NESTED_TAG if nested else ViolationCode.TAG_IN_TEXT
        self._report(code, f"{self.text[token.start : token.end]} inside <{opened.tag}>", token)
        return False

    def _next(self, tag: Tag, closing: bool, index: int) -> int | None:
        places = self._places.get((tag, closing), [])
        position = bisect_right(places, index)
        return places[position] if position < len(places) else None

    def _close(self, opened: _Token, token: _Token | None, closes: bool) -> None:
        stop = len(self.text) if token is None else token.start
        end = token.end if token is not None and closes else stop
        text = self.text[opened.end : stop]
        if not closes:
            self._report(ViolationCode.UNCLOSED_TAG, f"<{opened.tag}> is never closed", opened)
        if opened.tag is Tag.OBSERVATION:
            text = unescape(text)
        self.elements.append(Element(opened.tag, text, self._place(), opened.start, end, self.origin, closed=closes))
        self._answered = self._answered or opened.tag is Tag.ANSWER

    def _between(self, start: int, end: int) -> None:
        """Text outside elements: white space is legal."""
        stray = self.text[start:end]
        if not stray.strip():
            return
        place = _Token(Tag.THINK, False, start, end)
        shown = stray.strip()[:40]
        shape = _TAG_SHAPE.search(stray)
        if self._answered:
            self._report(ViolationCode.TEXT_AFTER_ANSWER, f"text after the answer: {shown!r}", place)
        elif shape is not None:
            self._report(ViolationCode.UNKNOWN_TAG, f"{shape.group()} is no tag of the language", place)
        else:
            self._report(ViolationCode.STRAY_TEXT, f"text outside any element: {shown!r}", place)

    def _place(self) -> int:
        return len(self.elements) if self._segment is None else self._segment

    def _report(self, code: ViolationCode, message: str, token: _Token) -> None:
        self.violations.append(Violation(code, self._place(), message, token.start, token.end))
