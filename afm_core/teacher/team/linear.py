"""Placing texts into one chain: a writer that asks the grammar where an element may stand.

A piece names the tags that would say best what it is, in order; the first that the grammar allows here is taken. A
missing thought is supplied from the event's own goal, a thought that may not stand here waits for the next place where
it may, and what fits nowhere becomes a thought. Nothing is ever placed against the grammar.
"""

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from afm_core.coa import Grammar, GrammarState, holds_tags
from afm_core.data import Origin, Segment, Tag

_TAG_TEXT = re.compile(rf"</?({'|'.join(Tag)})>|<(?=observation)")
_POOR = re.compile(r"\bpoor(ly)?\b", re.IGNORECASE)


@dataclass(frozen=True)
class Placed:
    """A segment and the event that it came from."""

    segment: Segment
    event: str


@dataclass
class ChainWriter:
    """Writes a chain of one grammar. `unplaced` counts texts that stand nowhere."""

    grammar: Grammar
    placed: list[Placed] = field(default_factory=list)
    unplaced: int = 0
    _state: GrammarState = field(init=False)
    _waiting: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._state = self.grammar.start()

    @property
    def last(self) -> Tag | None:
        """The tag of the latest segment."""
        return self.placed[-1].segment.tag if self.placed else None

    def think(self, text: str, event: str) -> None:
        """Place a thought, here or at the next place that admits one."""
        thought = plain(text)
        repeated = self.last is Tag.THINK and self.placed[-1].segment.text == thought
        if thought and not repeated:
            self._waiting.append((thought, event))
            self._flush()

    def element(self, tags: Sequence[Tag], text: str, event: str, goal: str) -> bool:
        """Place a text as the first tag that fits, with a thought from `goal` where one is required; else as a thought.

        Returns whether one of the tags was fitting.
        """
        text = plain(text)
        for tag in tags:
            if self._fits(tag):
                if tag not in self._state.allowed():
                    self.think(goal, event)
                if tag is Tag.REFLECTION:
                    text = _POOR.sub("weak", text)
                self._put(Origin.TEACHER, tag, text, event)
                self._flush()
                return True
        self.think(text, event)
        return False

    def call(self, tag: Tag, argument: str, observation: str, event: str, goal: str) -> bool:
        """Place a call and its observation; not at all where the grammar has no place for it."""
        if not self._fits(tag):
            self.unplaced += 1
            return False
        if tag not in self._state.allowed():
            self.think(goal, event)
        self._put(Origin.TEACHER, tag, argument, event)
        self._put(Origin.TOOL, Tag.OBSERVATION, observation, event)
        return True

    def reflect_and_plan(self, reflection: str, plan: str, event: str, goal: str) -> None:
        """Place a judgement of the progress and the new plan that follows from it, whatever of both fits here."""
        if self._fits(Tag.REFLECTION) and self._leads_to_plan():
            if Tag.REFLECTION not in self._state.allowed():
                self.think(goal, event)
            self._put(Origin.TEACHER, Tag.REFLECTION, plain(reflection), event)
        else:
            self.think(reflection, event)
        self.element((Tag.PLAN,), plan, event, goal)

    def finish(self) -> list[Placed]:
        """The chain; thoughts that still wait are counted as unplaced."""
        self.unplaced += len(self._waiting)
        return self.placed

    def _fits(self, tag: Tag) -> bool:
        """Whether the tag may stand here, perhaps after a thought."""
        allowed = self._state.allowed()
        if tag in allowed:
            return True
        if Tag.THINK not in allowed:
            return False
        probe = copy.copy(self._state)
        probe.advance(Tag.THINK, "thought")
        return tag in probe.allowed()

    def _leads_to_plan(self) -> bool:
        """Whether a plan may follow a reflection in this profile."""
        return Tag.PLAN in self.grammar.successors.get(Tag.REFLECTION, frozenset())

    def _flush(self) -> None:
        while self._waiting and Tag.THINK in self._state.allowed():
            text, event = self._waiting.pop(0)
            self._put(Origin.TEACHER, Tag.THINK, text, event)

    def _put(self, origin: Origin, tag: Tag, text: str, event: str) -> None:
        self._state.advance(tag, text, origin=origin)
        self.placed.append(Placed(Segment(origin=origin, tag=tag, text=text), event))


def plain(text: str) -> str:
    """Prose without tags of the language: `<answer>` becomes `answer`, since a tag in free text breaks the chain."""
    text = text.strip()
    while holds_tags(text):
        text = _TAG_TEXT.sub(lambda match: match.group(1) or "", text)
    return text
