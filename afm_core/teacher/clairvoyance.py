"""The check that a demonstration says nothing it could not know: the teacher knows the solution, the student
will not.

Known is what stands in the question or in an earlier observation. Checked is every text the teacher wrote
(thoughts, plans, calls, reflections, checks, answers) in two ways: the solution's own names and values as
whole terms and word by word, and any other token that carries information, that is one with a capital letter
or a digit.
"""

import re
from collections.abc import Iterable, Iterator

from afm_core.data import AgentTask, Origin, Tag, Trajectory
from afm_core.teacher.agents import phrase
from afm_core.teacher.reading import mentions

_WORD = re.compile(r"\w(?:[\w.,'’\-]*\w)?")
_SCORE = re.compile(r"\bScore:\s*[1-4]\b")

TEMPLATE_WORDS = frozenset(
    ("no", "what", "read", "done", "larger", "smaller", "wrong", "page", "query", "about", "results", "supported")
)
"""Words of the teacher's own wording: they carry no knowledge of the world."""

SHORT = 4
"""Lower-case words of a value up to this many letters (`of`, `the`, `and`) are not held against a text."""


def check_clairvoyance(trajectory: Trajectory, task: AgentTask) -> list[str]:
    """Problems of a teacher's trajectory, empty if there are none; each names the segment and the word.

    Only segments of origin teacher are checked: what a policy samples is its own guess.
    """
    known = task.question
    secrets = tuple(dict.fromkeys(_secrets(task)))
    plain = _plain_words(task)
    problems: list[str] = []
    for number, segment in enumerate(trajectory.segments):
        if segment.origin in {Origin.TOOL, Origin.PROMPT}:
            known += f"\n{segment.text}"
        elif segment.origin == Origin.TEACHER:
            text = _SCORE.sub("", segment.text) if segment.tag == Tag.DOUBLE_CHECK else segment.text
            unknown = dict.fromkeys(
                [*_unknown_terms(text, known, secrets), *_unknown_words(text, known, plain, secrets)]
            )
            problems += [f"segment {number} ({segment.tag}): {word!r} was not seen before" for word in unknown]
    return problems


def _secrets(task: AgentTask) -> Iterator[str]:
    for step in task.solution:
        yield from (step.subject, step.value)
    yield from task.answers


def _plain_words(task: AgentTask) -> frozenset[str]:
    """Words that may be written freely: the teacher's wording and the names of the solution's relations."""
    relations = (phrase(step.relation) for step in task.solution)
    return TEMPLATE_WORDS | {word.casefold() for relation in relations for word in _WORD.findall(relation)}


def _unknown_terms(text: str, known: str, secrets: Iterable[str]) -> Iterator[str]:
    return (secret for secret in secrets if mentions(text, secret) and not mentions(known, secret))


def _unknown_words(text: str, known: str, plain: frozenset[str], secrets: Iterable[str]) -> Iterator[str]:
    known_words = {word.casefold() for word in _WORD.findall(known)}
    named = [word for secret in secrets for word in _WORD.findall(secret)]
    secret_words = {word.casefold() for word in named if len(word) > SHORT or word[0].isupper()}
    for word in _WORD.findall(text):
        folded = word.casefold()
        telling = folded in secret_words or any(letter.isupper() or letter.isdigit() for letter in word)
        if telling and folded not in known_words and folded not in plain:
            yield word
