"""AgentTask: a question whose answer can be verified, and what it was made from.

Departs from a plain QA row in three ways: the answer's span in a frozen document is kept (verification never asks a
live page), the solution path is part of the task, and the split is decided by the component of entities it touches.
"""

import hashlib
import json
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_INT32 = 2**31 - 1
_INT64 = 2**63 - 1
"""The largest whole numbers that the tables hold (see afm_core.data.tables)."""


class Split(StrEnum):
    """What a task may be used for."""

    TRAIN = "train"
    """Demonstrations and RL prompts."""
    DEV = "dev"
    """Checkpoint choice and RL's periodic evaluation."""
    GATE = "gate"
    """The champion's decision, nothing else."""
    TEST = "test"
    """Reported, never used to decide."""


class VerifierKind(StrEnum):
    """How an answer is checked."""

    EXACT_MATCH = "exact_match"
    MATH = "math"
    UNIT_TESTS = "unit_tests"
    JUDGE = "judge"


class Domain(StrEnum):
    """Which family of agent a task belongs to."""

    QA = "qa"
    WEB = "web"
    CODE = "code"
    MATH = "math"


class Operation(StrEnum):
    """What one step of a solution path does."""

    LOOKUP = "lookup"
    """Read one relation of one subject from a document."""
    LARGER = "larger"
    """Name the subject whose value is larger (over two earlier steps)."""
    SMALLER = "smaller"
    """Name the subject whose value is smaller (over two earlier steps)."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Verifier(_Frozen):
    """The check of an answer and what it needs (unit tests, judge rubric, tolerance)."""

    kind: VerifierKind = VerifierKind.EXACT_MATCH
    payload: dict[str, Any] = Field(default_factory=dict)


class Difficulty(_Frozen):
    """hops: sequential tool steps; width: parallel branches; solve_rate: observed share in [0, 1], if any."""

    hops: int = Field(ge=1, le=_INT32)
    width: int = Field(default=1, ge=1, le=_INT32)
    solve_rate: float | None = Field(default=None, ge=0, le=1)


class SolutionStep(_Frozen):
    """One step of the known solution path.

    subject is the literal entity when the question names it, else the value of step `inputs[0]`. For comparisons
    `inputs` are the two compared steps and `value` is the subject that wins.
    """

    operation: Operation = Operation.LOOKUP
    relation: str
    subject: str
    value: str
    document_id: str | None = None
    inputs: tuple[Annotated[int, Field(ge=0, le=_INT32)], ...] = ()


class Evidence(_Frozen):
    """A document the task rests on; (start, end) is the span of the step's value in its text, in characters."""

    document_id: str
    sha256: str
    start: int = Field(ge=0, le=_INT64)
    end: int = Field(ge=0, le=_INT64)


class Template(_Frozen):
    """Which composition of relations and which wording made the question; held_out: kept out of training."""

    composition: str
    paraphrase: str
    held_out: bool = False


class AgentTask(_Frozen):
    """One verifiable task. `id` is the content hash of question, answers and verifier (see `task_id`)."""

    id: str
    question: str = Field(min_length=1)
    answers: tuple[str, ...] = Field(min_length=1)
    verifier: Verifier = Verifier()
    domain: Domain = Domain.QA
    tools: tuple[str, ...] = ()
    difficulty: Difficulty = Difficulty(hops=1)
    solution: tuple[SolutionStep, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    component: str = ""
    template: Template | None = None
    split: Split = Split.TRAIN

    @model_validator(mode="after")
    def _id_matches_content(self) -> Self:
        expected = task_id(self.question, self.answers, self.verifier)
        if self.id != expected:
            raise ValueError(f"id {self.id!r} is not the hash of the content; expected {expected!r}")
        if any(not answer.strip() for answer in self.answers):
            raise ValueError("answers must not be empty strings")
        return self

    @classmethod
    def create(cls, question: str, answers: tuple[str, ...], verifier: Verifier | None = None, **fields: Any) -> Self:
        """Build a task and compute its id."""
        verifier = verifier or Verifier()
        return cls(
            id=task_id(question, answers, verifier), question=question, answers=answers, verifier=verifier, **fields
        )


def task_id(question: str, answers: tuple[str, ...], verifier: Verifier) -> str:
    """Content hash of a task, 16 hex digits of SHA-256."""
    content = json.dumps(
        {"question": question, "answers": list(answers), "verifier": verifier.model_dump(mode="json")},
        sort_keys=True,
        ensure_ascii=False,
    )
    return hashlib.sha256(content.encode()).hexdigest()[:16]


GUESSABLE_RELATIONS: frozenset[str] = frozenset({"continent", "currency", "language"})
"""Last relations with so few values that a model without tools is often right."""


def is_comparison(task: AgentTask) -> bool:
    """Whether the last step compares two values."""
    return bool(task.solution) and task.solution[-1].operation is not Operation.LOOKUP


def is_guessable(task: AgentTask) -> bool:
    """Whether the answer comes from a small set: a comparison's two sides, continents, currencies, languages."""
    return is_comparison(task) or bool(task.solution and task.solution[-1].relation in GUESSABLE_RELATIONS)
