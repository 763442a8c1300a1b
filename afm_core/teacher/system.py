"""The solution teacher: a small multi-agent system that walks a task's known solution path through the real
tools.

It knows which relation comes next and recognises the right value when it sees it; it never writes down what
it has not seen (see afm_core.teacher.clairvoyance). A run: plan; for each lookup a search, then the page if
no result line states the value; a suggested answer, its check, the answer. At the configured rate one mistake
is made and mended.
"""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from afm_core.config import AgentConfig, GrammarName, TeacherConfig
from afm_core.data import AgentTask, Operation, SolutionStep, Status, Tag
from afm_core.teacher.agents import (
    DECOYS,
    Journal,
    OutOfBudget,
    Planner,
    Reader,
    Reflector,
    Searcher,
    ToolFailure,
    Verifier,
    goal_text,
    phrase,
)
from afm_core.teacher.events import MistakeKind, Recording
from afm_core.teacher.reading import has_page, mentions, other_page, page_to_read, stating_title
from afm_core.tools.protocol import Tool


class ValueNotFound(Exception):
    """Neither the results nor the page of a subject state the value that the solution has."""


@dataclass(frozen=True)
class PlannedMistake:
    """The mistake to make, the step to make it at, and a number in [0, 1) that settles its details."""

    kind: MistakeKind = MistakeKind.NONE
    step: int = -1
    choice: float = 0.0


def demonstrate(task: AgentTask, tools: Mapping[Tag, Tool], teacher: TeacherConfig, agent: AgentConfig) -> Recording:
    """Solve one task by its known solution path with real tool calls.

    Deterministic: the mistake follows from the seed and the task's id. A run that cannot go on is returned
    with its events so far and a status other than completed; nothing is raised for it.

    Raises:
        ValueError: the task has no solution path, or the grammar or the tools leave the teacher without a
        search.
    """
    if not task.solution:
        raise ValueError(f"task {task.id}: the solution teacher needs a solution path")
    run = _Run.create(task, tools, plan_mistake(task, teacher, agent.grammar), agent)
    status, failure, answer = Status.COMPLETED, "", None
    try:
        answer = run.solve()
    except ValueNotFound as error:
        status, failure = Status.BUDGET_EXHAUSTED, str(error)
    except OutOfBudget as error:
        status, failure = Status.BUDGET_EXHAUSTED, str(error)
    except ToolFailure as error:
        status, failure = Status.TOOL_ERROR, str(error)
    return Recording(
        task_id=task.id,
        question=task.question,
        grammar=agent.grammar,
        events=tuple(run.journal.events),
        status=status,
        answer=answer,
        mistake=run.made,
        failure=failure,
    )


def plan_mistake(task: AgentTask, teacher: TeacherConfig, grammar: GrammarName) -> PlannedMistake:
    """Decide whether, where and how the run errs, from the seed and the task's id alone."""
    seed = hashlib.sha256(f"{teacher.seed}:{task.id}".encode()).digest()
    generator = random.Random(seed)
    if generator.random() >= teacher.mistake_rate:
        return PlannedMistake()
    lookups = [number for number, step in enumerate(task.solution) if step.operation == Operation.LOOKUP]
    places = {MistakeKind.WRONG_QUERY: lookups, MistakeKind.WRONG_PAGE: lookups}
    if grammar != GrammarName.MHQA and (early := _on_the_way(task.solution)):
        places[MistakeKind.PREMATURE_ANSWER] = early
    kind = generator.choice(list(places))
    return PlannedMistake(kind, generator.choice(places[kind]), generator.random())


def _on_the_way(steps: Sequence[SolutionStep]) -> list[int]:
    """Lookups whose value could be taken for the answer of a chain and is not: another relation, another
    value."""
    last = steps[-1]
    return [
        number
        for number, step in enumerate(steps[:-1])
        if last.operation == Operation.LOOKUP and step.relation != last.relation and step.value != last.value
    ]


@dataclass
class _Run:
    """The state of one run. `values` and `titles` are what was seen, per step; `found` is the latest in words."""

    task: AgentTask
    mistake: PlannedMistake
    journal: Journal
    planner: Planner
    searcher: Searcher
    reader: Reader | None
    reflector: Reflector
    verifier: Verifier
    double_check: bool
    made: MistakeKind = MistakeKind.NONE
    found: str = ""
    values: dict[int, str] = field(default_factory=dict)
    titles: dict[int, str] = field(default_factory=dict)

    @classmethod
    def create(cls, task: AgentTask, tools: Mapping[Tag, Tool], mistake: PlannedMistake, agent: AgentConfig) -> "_Run":
        search = next((tag for tag in (Tag.WEB_SEARCH, Tag.WIKI_SEARCH) if tag in tools), None)
        if search is None or agent.grammar == GrammarName.CODE:
            raise ValueError(f"the solution teacher searches; grammar {agent.grammar} with {sorted(tools)} cannot")
        journal = Journal(task.id, agent.budget.tool_calls)
        return cls(
            task=task,
            mistake=mistake,
            journal=journal,
            planner=Planner(journal),
            searcher=Searcher(journal, search, tools[search]),
            reader=Reader(journal, Tag.CRAWL_PAGE, tools[Tag.CRAWL_PAGE]) if Tag.CRAWL_PAGE in tools else None,
            reflector=Reflector(journal),
            verifier=Verifier(journal),
            double_check=agent.grammar != GrammarName.MHQA,
        )

    def solve(self) -> str:
        """Walk the solution path; returns the answer given."""
        steps = self.task.solution
        self._plan()
        for number, step in enumerate(steps):
            if step.operation == Operation.LOOKUP:
                self._look_up(number, step)
            else:
                self._compare(number, step)
        return self._conclude()

    def _plan(self) -> None:
        self.planner.plan(goal_text(self.task.solution, self.values))

    def _subject(self, number: int) -> str:
        step = self.task.solution[number]
        return self.values[step.inputs[0]] if step.inputs else step.subject

    def _look_up(self, number: int, step: SolutionStep) -> None:
        """One hop: search, use a line that states the value, else read the page."""
        subject, relation = self._subject(number), phrase(step.relation)
        err = self.mistake.kind if self.mistake.step == number else MistakeKind.NONE
        seen = self._ask_wrongly(number, step, subject) if err == MistakeKind.WRONG_QUERY else None
        if number not in self.titles:
            if seen is None:
                seen = self.searcher.search(f"{subject} {relation}", self._next())
            if err == MistakeKind.WRONG_PAGE:
                self._read_wrongly(number, step, subject, seen)
            self._take(number, step, subject, seen)
        self.values[number] = step.value
        self.found = f"{step.value}."
        if err == MistakeKind.PREMATURE_ANSWER:
            self._answer_too_early(number, step)

    def _next(self) -> str:
        """The thought before a search: what is left to find; none if this turn has one already."""
        if self.journal.same_turn:
            return ""
        last = self.task.solution[-1]
        sides = last.inputs if last.operation != Operation.LOOKUP else ()
        seen = [f"{self._subject(side)} {self.values[side]}. " for side in sides if side in self.values]
        return "".join(seen) + goal_text(self.task.solution, self.values)

    def _take(self, number: int, step: SolutionStep, subject: str, seen: str) -> None:
        """Find the value in the results, else on the page; raises ValueNotFound."""
        title = stating_title(seen, subject, step.value)
        if title is None and self.reader is not None:
            title = page_to_read(seen, subject)
            page = self.reader.read(title, step.relation)
            title = title if mentions(page, step.value) else None
        if title is None:
            raise ValueNotFound(f"step {number + 1}: the {phrase(step.relation)} of {subject} was not found")
        self.titles[number] = title

    def _ask_wrongly(self, number: int, step: SolutionStep, subject: str) -> str | None:
        """Send a wrong query and reflect on it; if it finds the value all the same, the hop is done.

        Returns the results if they show the subject's page, which is then read; None if one must ask again.
        """
        query = wrong_query(step, subject, self.mistake.choice)
        seen = self.searcher.search(query, self._next(), mistake=True)
        title = stating_title(seen, subject, step.value)
        if title is not None:
            self.made = MistakeKind.HARMLESS
            self.titles[number] = title
            return None
        self.made = MistakeKind.WRONG_QUERY
        self.reflector.wrong_query(step.relation)
        return seen if self.reader is not None and has_page(seen, subject) else None

    def _read_wrongly(self, number: int, step: SolutionStep, subject: str, seen: str) -> None:
        """Read another result's page, reflect, plan anew. Without another result no mistake is made."""
        title = other_page(seen, subject)
        if title is None or self.reader is None:
            return
        self.made = MistakeKind.WRONG_PAGE
        self.reader.read(title, step.relation, mistake=True)
        self.reflector.wrong_page(title, subject)
        self._plan()

    def _answer_too_early(self, number: int, step: SolutionStep) -> None:
        """Suggest a value on the way, find the suggestion wanting, plan anew."""
        self.made = MistakeKind.PREMATURE_ANSWER
        self.verifier.suggest(step.value, f"{self.found} Done.", mistake=True)
        self.verifier.reject(step.value, step.relation, self.task.solution[-1].relation)
        self._plan()

    def _compare(self, number: int, step: SolutionStep) -> None:
        """Name both values and the winner."""
        sides = [f"{self._subject(side)} {self.values[side]}" for side in step.inputs]
        self.values[number] = step.value
        self.found = f"{', '.join(sides)}. {step.operation.capitalize()}: {step.value}."

    def _conclude(self) -> str:
        answer = self.values[len(self.task.solution) - 1]
        thought = f"{self.found} Done."
        if not self.double_check:
            self.verifier.answer(answer, thought)
            return answer
        self.verifier.suggest(answer, thought)
        last = self.task.solution[-1]
        sources = [self.titles[side] for side in last.inputs] if last.operation != Operation.LOOKUP else []
        self.verifier.support(sources or [self.titles[len(self.task.solution) - 1]])
        self.verifier.answer(answer)
        return answer


def wrong_query(step: SolutionStep, subject: str, choice: float) -> str:
    """A plausible wrong query: another relation of the subject, or one word of it dropped; choice in [0,
    1)."""
    relation = phrase(step.relation)
    words = subject.split()
    queries = [f"{subject} {decoy}" for decoy in DECOYS if decoy not in relation]
    if len(words) > 1:
        queries += [" ".join([*words[:drop], *words[drop + 1 :], relation]) for drop in range(len(words))]
    return queries[int(choice * len(queries))]
