"""Which rows a task pool takes: new, well-formed, and of the right split. Pure functions of rows and of what is known.

A row's split follows from its entities, so that nothing that a model was trained on is asked at the gate. Every group
of entities (a component of the corpus; a row that touches none is a group of its own, named by its question) has one
split for ever: the one that the profile's tasks or the pool gave it already, else a hash of its name. So a row's split
never depends on the rows that happen to come with it, and merging files in any order gives the same pool; only where
two rows ask the same question differently, or name different splits for a new group, does the first one win.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from afm_core.config import SplitShares
from afm_core.data import AgentTask, Document, Operation, Split
from afm_core.taskcraft.rows import BadRow, GoodRow
from afm_core.tools import fold


class Refusal(StrEnum):
    """Why a row that is a task is not taken, besides being known already."""

    LEAK_DEV = "leak:dev"
    """A training row asks a question of a dev split."""
    LEAK_GATE = "leak:gate"
    """A training row asks a question of a gate split."""
    LEAK_TEST = "leak:test"
    """A training row asks a question of a test split."""
    LEAK_BENCHMARK = "leak:benchmark"
    """A training row asks a question of a benchmark."""
    LEAK_ENTITIES = "leak:entities"
    """Its entities belong to another split than the one that it names, or to several."""
    SOLUTION = "solution"
    """Its solution path cannot be walked."""
    EVIDENCE = "evidence"
    """Its evidence is not in the corpus, or not as it says."""


_FIELD = {Refusal.LEAK_ENTITIES: "split", Refusal.SOLUTION: "solution", Refusal.EVIDENCE: "evidence"}


@dataclass(frozen=True)
class _Place:
    """Where a question is known from; `split` None: a benchmark."""

    split: Split | None
    where: str


@dataclass
class Known:
    """What a row is held against. questions: normalised question -> place; homes: component -> split."""

    documents: Mapping[str, Document] = field(default_factory=dict)
    questions: dict[str, _Place] = field(default_factory=dict)
    homes: dict[str, Split] = field(default_factory=dict)

    @classmethod
    def build(cls, documents: Iterable[Document], tasks: Iterable[AgentTask], benchmarks: Mapping[str, str]) -> Self:
        """Of a profile's corpus and tasks, and of benchmark questions (question -> the benchmark's name)."""
        known = cls({document.id: document for document in documents})
        for question, name in benchmarks.items():
            known.questions[normal_question(question)] = _Place(None, f"the benchmark {name}")
        for task in tasks:
            known.add(task, "the profile's tasks")
        return known

    def with_tasks(self, tasks: Iterable[AgentTask], where: str) -> Self:
        """A copy that also knows these tasks."""
        known = type(self)(self.documents, dict(self.questions), dict(self.homes))
        for task in tasks:
            known.add(task, where)
        return known

    def add(self, task: AgentTask, where: str) -> None:
        """Remember a task and where it is; a held-out place of its question or entities is never forgotten."""
        question = normal_question(task.question)
        place = self.questions.get(question)
        if place is None or place.split in (None, Split.TRAIN):
            self.questions[question] = _Place(task.split, f"task {task.id} of {where}")
        for group in self.groups(task):
            self.homes.setdefault(group, task.split)

    def groups(self, task: AgentTask) -> frozenset[str]:
        """The components of entities that a task touches: its own, and those of the documents that it rests on."""
        named = [*(one.document_id for one in task.evidence), *(step.document_id or "" for step in task.solution)]
        touched = {self.documents[one].component for one in named if one in self.documents}
        return frozenset({task.component, *touched} - {""})


@dataclass
class Admission:
    """What became of the rows: `rows` = added + duplicates + rejected, always."""

    added: list[AgentTask] = field(default_factory=list)
    duplicates: int = 0
    rejected: list[BadRow] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """All rows that came."""
        return len(self.added) + self.duplicates + len(self.rejected)

    @property
    def good(self) -> int:
        """Rows that are tasks and may stay, new or known."""
        return len(self.added) + self.duplicates

    @property
    def splits(self) -> dict[str, int]:
        """New tasks by split."""
        return dict(sorted(Counter(str(task.split) for task in self.added).items()))

    @property
    def reasons(self) -> dict[str, int]:
        """Rejected rows by reason, leaks under their names, all other kinds of reason as they are told."""
        return dict(sorted(Counter(row.reason.partition(" (")[0] for row in self.rejected).items()))


def admit(rows: Iterable[GoodRow | BadRow], known: Known, shares: SplitShares) -> Admission:
    """Judge rows one after another. `known` learns the tasks that are added."""
    admission = Admission()
    for row in rows:
        if isinstance(row, BadRow):
            admission.rejected.append(row)
            continue
        verdict = judge(row, known, shares)
        if isinstance(verdict, BadRow):
            admission.rejected.append(verdict)
        elif verdict is None:
            admission.duplicates += 1
        else:
            known.add(verdict, "these rows")
            admission.added.append(verdict)
    return admission


def judge(row: GoodRow, known: Known, shares: SplitShares) -> AgentTask | BadRow | None:
    """The task with its split, why it is refused, or None: its question is known already."""
    task = row.task
    broken = next(_broken(task, known.documents), None)
    if broken is not None:
        return _refused(row, *broken)
    groups = known.groups(task)
    homes = {known.homes[group] for group in groups if group in known.homes}
    split = _split(row, groups, homes, known, shares)
    if split is None:
        places = ", ".join(sorted(homes | ({task.split} if row.split_given else set())))
        return _refused(row, Refusal.LEAK_ENTITIES, f"its entities and its split are not all of one split: {places}")
    place = known.questions.get(normal_question(task.question))
    if place is None or (place.split is None and split is not Split.TRAIN):
        return task.model_copy(update={"split": split})
    if split is Split.TRAIN and place.split is not Split.TRAIN:
        return _refused(row, Refusal(f"leak:{place.split or 'benchmark'}"), f"the question is that of {place.where}")
    return None


def dealt(group: str, shares: SplitShares) -> Split:
    """The split of a new group: a hash of its name alone falls into the shares. The same name, the same split."""
    number = int.from_bytes(hashlib.sha256(f"pool split {group}".encode()).digest()[:7], "big") / 2**56
    for split in (Split.TEST, Split.GATE, Split.DEV):
        number -= float(getattr(shares, split))
        if number < 0:
            return split
    return Split.TRAIN


def normal_question(question: str) -> str:
    """Case, accents, white space and the final mark aside: what two askings of one question have in common."""
    return fold(question).rstrip("?!. ") or question


def _split(row: GoodRow, groups: frozenset[str], homes: set[Split], known: Known, shares: SplitShares) -> Split | None:
    """The one split that the row's entities and its own word allow; None if they do not agree."""
    if row.split_given:
        return row.task.split if homes <= {row.task.split} else None
    fresh = {
        dealt(group, shares) for group in (groups or {normal_question(row.task.question)}) if group not in known.homes
    }
    found = homes | fresh
    return found.pop() if len(found) == 1 else None


def _broken(task: AgentTask, documents: Mapping[str, Document]) -> Iterator[tuple[Refusal, str]]:
    """What is wrong with a task's own evidence and solution path."""
    for evidence in task.evidence:
        document = documents.get(evidence.document_id)
        if document is None:
            yield Refusal.EVIDENCE, f"document {evidence.document_id!r} is not in the corpus"
        elif document.sha256 != evidence.sha256:
            yield Refusal.EVIDENCE, f"document {evidence.document_id!r} has another text (sha256 differs)"
        elif not evidence.start <= evidence.end <= len(document.text):
            yield (
                Refusal.EVIDENCE,
                f"({evidence.start}, {evidence.end}) is outside of document {evidence.document_id!r}",
            )
    for number, step in enumerate(task.solution):
        compares = step.operation is not Operation.LOOKUP
        sides = [task.solution[one] for one in step.inputs if one < number]
        if len(sides) < len(step.inputs):
            yield Refusal.SOLUTION, f"step {number} rests on a step that is not before it"
        elif compares and (len(sides) != 2 or any(one.operation is not Operation.LOOKUP for one in sides)):
            yield Refusal.SOLUTION, f"step {number} compares, so its inputs must be two lookups"
        elif compares and number != len(task.solution) - 1:
            yield Refusal.SOLUTION, f"step {number} compares, so it must be the last"
        elif not compares and (len(sides) > 1 or not (sides or step.subject.strip()) or not step.value.strip()):
            yield Refusal.SOLUTION, f"step {number} looks up, so it needs a value and a subject or one input"


def _refused(row: GoodRow, refusal: Refusal, detail: str) -> BadRow:
    return BadRow(row.row, _FIELD.get(refusal, "question"), f"{refusal} ({detail})", row.original)
