"""Deterministic checks of a candidate task against the frozen documents. Any generator's tasks pass through them."""

from collections.abc import Mapping
from enum import StrEnum

from afm_core.data import AgentTask, Document, Operation
from afm_core.tools.text import contains_words, words

LONGEST_QUESTION = 30
"""Words."""


class Rejection(StrEnum):
    """Why a candidate did not become a task."""

    NO_PATH = "no_path"
    """A relation of the path is not stated, or is stated more than once."""
    UNUSABLE_NAME = "unusable_name"
    """An entity's name is ambiguous, hard to write, or names an entity of another component."""
    REVISITS = "revisits"
    """The path passes an entity twice."""
    TOO_CLOSE = "too_close"
    """The compared values are nearly equal."""
    BAD_EVIDENCE = "bad_evidence"
    """The evidence is not the frozen text, or its span is not the step's value."""
    LEAK = "leak"
    """The answer stands in the question."""
    SHORTCUT = "shortcut"
    """A step can be skipped: its value stands in the question, or is spelled out by the value before it."""
    NOT_ASKED = "not_asked"
    """The question does not name where the path starts."""
    TOO_LONG = "too_long"
    """The question is longer than LONGEST_QUESTION words."""
    FOREIGN = "foreign"
    """The evidence touches a component of another split."""
    DUPLICATE = "duplicate"
    """The question, or the same path from the same start, was there before."""
    GUESSABLE_CAP = "guessable_cap"
    """The split has its share of tasks whose answers come from a small set."""
    NOT_NEEDED = "not_needed"
    """The split has enough tasks of this kind."""


def check_task(task: AgentTask, documents: Mapping[str, Document]) -> Rejection | None:
    """The first rule that the task breaks, or None. `documents` by id. Tasks without a path pass the path's rules."""
    lookups = [step for step in task.solution if step.operation is Operation.LOOKUP]
    if len(task.evidence) != len(lookups):
        return Rejection.BAD_EVIDENCE
    for step, evidence in zip(lookups, task.evidence, strict=True):
        document = documents.get(evidence.document_id)
        if document is None or document.sha256 != evidence.sha256 or step.document_id != document.id:
            return Rejection.BAD_EVIDENCE
        if document.text[evidence.start : evidence.end] != step.value:
            return Rejection.BAD_EVIDENCE
    return _check_question(task)


def _check_question(task: AgentTask) -> Rejection | None:
    asked = words(task.question)
    if len(asked) > LONGEST_QUESTION:
        return Rejection.TOO_LONG
    lookups = [step for step in task.solution if step.operation is Operation.LOOKUP]
    for step in lookups:
        if not step.inputs and not contains_words(asked, words(step.subject)):
            return Rejection.NOT_ASKED
    # A comparison's answer is one of the two names in the question, by its nature; its values must not be.
    compared = len(lookups) < len(task.solution)
    secrets = [step.value for step in lookups[:-1]]
    if any(contains_words(asked, words(value)) for value in secrets):
        return Rejection.SHORTCUT
    # Minna Airport serves Minna, the capital Tunis keeps the time of Africa/Tunis: such a step asks for no look-up.
    known = [words(step.value) for step in lookups]
    if any(contains_words(known[step.inputs[0]], words(telling_part(step.value))) for step in lookups if step.inputs):
        return Rejection.SHORTCUT
    answers = [lookups[-1].value] if compared else task.answers
    if any(contains_words(asked, words(telling_part(answer))) for answer in answers):
        return Rejection.LEAK
    return None


def telling_part(answer: str) -> str:
    """The part of an answer that gives it away: `Kabul` of `Asia/Kabul`."""
    return answer.rpartition("/")[2].replace("_", " ") or answer
