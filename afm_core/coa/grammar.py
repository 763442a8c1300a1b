"""The grammar: one state machine over elements, four profiles as data.

A profile's table says which element may follow which, think left out: a think may stand anywhere between
(except where `no_think_after` says otherwise) and changes nothing but this: elements in `think_before` need
one. In the web family one think covers its whole turn (everything up to the next observation), so that
`think, plan, web_search` is legal as well as `think, plan, think, web_search`; in the code family each
needs its own (`think_each`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from afm_core.coa.parser import Element
from afm_core.coa.readings import (
    double_check_score,
    json_arguments,
    python_and_stdin,
    same_answer,
    says_poor,
)
from afm_core.coa.violations import Violation, ViolationCode
from afm_core.config import GrammarName
from afm_core.data import TOOL_TAGS, Origin, Tag

START: Tag | None = None
"""The place before the first element, in the tables."""


@dataclass(frozen=True)
class Grammar:
    """One profile. `successors` maps an element (None: the start) to what may follow it, think left out."""

    name: GrammarName
    tools: tuple[Tag, ...]
    roles: tuple[Tag, ...]
    successors: Mapping[Tag | None, frozenset[Tag]]
    think_before: frozenset[Tag]
    think_each: bool = False
    no_think_after: frozenset[Tag | None] = frozenset()
    single_plan: bool = False
    replan_when_poor: bool = False
    fenced_code: bool = True

    @property
    def tags(self) -> frozenset[Tag]:
        """Every tag of the profile."""
        return frozenset((*self.tools, *self.roles, Tag.OBSERVATION))

    def start(self) -> "GrammarState":
        """A state before the first element, for online use."""
        return GrammarState(self)

    def check(self, elements: Iterable[Element]) -> list[Violation]:
        """All violations of a whole trajectory, in order; empty if it is valid."""
        state = self.start()
        found: list[Violation] = []
        for element in elements:
            found += state.advance(element.tag, element.text, origin=element.origin, segment=element.segment)
        return found + state.finish()


class GrammarState:
    """Where a trajectory stands. After a violation it goes on as if the element had been legal."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.finished = False
        """Whether the answer was given."""
        self._last: Tag | None = START
        self._thought = False
        self._previous: Tag | None = START
        self._suggested: str | None = None
        self._score: int | None = None
        self._poor = False
        self._foreign_call = False
        self._segment = -1

    def allowed(self) -> frozenset[Tag]:
        """The tags that may come next without a violation."""
        if self.finished:
            return frozenset()
        if self._last in TOOL_TAGS:
            return frozenset({Tag.OBSERVATION})
        following = self._following()
        if not self._thought:
            following -= self.grammar.think_before
        return following | {Tag.THINK} if self._may_think() else following

    def advance(
        self, tag: Tag, text: str, *, origin: Origin | None = None, segment: int | None = None
    ) -> list[Violation]:
        """Take one element; returns its violations. `segment` is their place (default: one more than
        before).
        """
        self._segment = self._segment + 1 if segment is None else segment
        found: list[Violation] = []
        if self.finished:
            return [self._violation(ViolationCode.TEXT_AFTER_ANSWER, f"<{tag}> after the answer")]
        if tag is Tag.OBSERVATION:
            return self._observe(origin)
        if tag not in self.grammar.tags:
            self._foreign_call = tag in TOOL_TAGS
            message = f"<{tag}> does not belong to the profile {self.grammar.name}"
            return [self._violation(ViolationCode.FOREIGN_TAG, message)]
        found += self._content(tag, text)
        found += self._awaited_observation()
        found += self._transition(tag)
        if tag is Tag.ANSWER:
            found += self._answer(text)
        self._move(tag, text)
        return found

    def finish(self) -> list[Violation]:
        """Violations of ending here."""
        found = self._awaited_observation()
        if not self.finished:
            found.append(self._violation(ViolationCode.MISSING_ANSWER, "the trajectory ends without <answer>"))
        return found

    def _following(self) -> frozenset[Tag]:
        following = self.grammar.successors[self._last]
        if self._last is Tag.REFLECTION and self._poor:
            return following & {Tag.PLAN}
        if self._last is Tag.DOUBLE_CHECK and self._score is not None:
            return following & ({Tag.PLAN} if self._score <= 2 else {Tag.ANSWER})
        return following

    def _may_think(self) -> bool:
        return self._previous not in self.grammar.no_think_after

    def _observe(self, origin: Origin | None) -> list[Violation]:
        if origin is Origin.SAMPLED:
            return [self._violation(ViolationCode.FORGED_OBSERVATION, "the model wrote an observation")]
        if self._foreign_call:
            self._foreign_call = False
            return []
        if self._last not in TOOL_TAGS:
            return [self._violation(ViolationCode.UNEXPECTED_OBSERVATION, "<observation> without a tool call")]
        self._last = self._previous = Tag.OBSERVATION
        self._thought = False
        return []

    def _awaited_observation(self) -> list[Violation]:
        if self._last not in TOOL_TAGS:
            return []
        message = f"<{self._last}> is not followed by <observation>"
        self._last = self._previous = Tag.OBSERVATION
        return [self._violation(ViolationCode.MISSING_OBSERVATION, message)]

    def _content(self, tag: Tag, text: str) -> list[Violation]:
        if not text.strip():
            return [self._violation(ViolationCode.EMPTY_ELEMENT, f"<{tag}> is empty")]
        if tag is Tag.CODE and self.grammar.fenced_code and python_and_stdin(text) is None:
            return [self._violation(ViolationCode.MALFORMED_CODE, "<code> is not one ```py block")]
        if tag is Tag.VISUAL_INSPECTOR and json_arguments(text) is None:
            message = f"<{tag}> does not hold one JSON object"
            return [self._violation(ViolationCode.MALFORMED_ARGUMENTS, message)]
        return []

    def _transition(self, tag: Tag) -> list[Violation]:
        if tag is Tag.THINK:
            if self._may_think():
                return []
            return [self._forbidden(tag)]
        if tag not in self._following():
            return [self._refusal(tag)]
        if tag in self.grammar.think_before and not self._thought:
            self._thought = True
            return [self._violation(ViolationCode.MISSING_THINK, f"<{tag}> without a <think> before it")]
        return []

    def _refusal(self, tag: Tag) -> Violation:
        if tag is Tag.PLAN and self.grammar.single_plan and self._last is not START:
            return self._violation(ViolationCode.SECOND_PLAN, "exactly one <plan> is allowed, first")
        if self._last is Tag.REFLECTION and self._poor:
            return self._violation(
                ViolationCode.NO_REPLAN_AFTER_POOR, f"<{tag}> after a reflection that scored something poor"
            )
        if self._last is Tag.DOUBLE_CHECK and self._score is not None:
            return self._violation(_score_code(self._score, tag), f"<{tag}> after a score of {self._score}")
        return self._forbidden(tag)

    def _forbidden(self, tag: Tag) -> Violation:
        before = "at the start" if self._last is START else f"after <{self._last}>"
        wanted = ", ".join(sorted(self.allowed())) or "nothing"
        return self._violation(
            ViolationCode.FORBIDDEN_TRANSITION, f"<{tag}> must not stand {before}; allowed: {wanted}"
        )

    def _answer(self, text: str) -> list[Violation]:
        if self._suggested is None or same_answer(text, self._suggested):
            return []
        message = f"the answer {text.strip()[:60]!r} is not the suggested {self._suggested.strip()[:60]!r}"
        return [self._violation(ViolationCode.ANSWER_DIFFERS_FROM_SUGGESTED, message)]

    def _move(self, tag: Tag, text: str) -> None:
        self._previous = tag
        self._foreign_call = False
        if tag is Tag.THINK:
            self._thought = True
            return
        self._last = tag
        if self.grammar.think_each:
            self._thought = False
        if tag is Tag.SUGGESTED_ANSWER:
            self._suggested = text
        self._score = double_check_score(text) if tag is Tag.DOUBLE_CHECK else None
        self._poor = tag is Tag.REFLECTION and self.grammar.replan_when_poor and says_poor(text)
        self.finished = tag is Tag.ANSWER

    def _violation(self, code: ViolationCode, message: str) -> Violation:
        return Violation(code, max(self._segment, 0), message)


def _score_code(score: int, tag: Tag) -> ViolationCode:
    if score >= 3:
        return ViolationCode.NO_ANSWER_AFTER_HIGH_SCORE
    if tag is Tag.ANSWER:
        return ViolationCode.ANSWERED_DESPITE_LOW_SCORE
    return ViolationCode.NO_REPLAN_AFTER_LOW_SCORE
