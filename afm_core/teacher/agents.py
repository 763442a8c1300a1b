"""The teacher's agents: planner, searcher, reader, reflector, verifier, and the journal they write to.

Each agent acts through one small method that adds one event. The wording is brief, since every token is training time
for a small model, and it carries the state: the plan is the question in normal form, `currency of country of Mombasa`,
in the question's own order; every later thought is what is left of it, `currency of Kenya`. So a step is a copy with
one substitution, and a chain ends by itself when nothing is left: no counting, no list to keep a place in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from afm_core.data import Operation, SolutionStep, Tag, text_sha256
from afm_core.teacher.events import Event, Role, event_id
from afm_core.tools.protocol import Tool, ToolStatus

DECOYS = ("population", "time zone", "elevation", "capital")
"""Relations that a wrong query asks for."""

GOOD_SCORE = 4
POOR_SCORE = 2
"""double_check's credibility: 2 and less means a new plan, 3 and more the answer."""


def phrase(relation: str) -> str:
    """A relation's name as words: `city.time_zone` is time zone."""
    return relation.rpartition(".")[2].replace("_", " ")


class ToolFailure(Exception):
    """A tool's infrastructure failed; the run ends with status tool_error."""


class OutOfBudget(Exception):
    """The episode's tool calls are used up."""


@dataclass
class Journal:
    """The events so far. Appending links each event to the one before: agents act on the latest output."""

    task_id: str
    tool_calls: int
    events: list[Event] = field(default_factory=list)

    @property
    def same_turn(self) -> bool:
        """Whether the latest event was no tool call: its thought covers what follows."""
        return bool(self.events) and self.events[-1].tool is None

    def add(self, role: Role, kind: Tag, content: str, thought: str = "", mistake: bool = False) -> Event:
        """Record an activation that calls no tool."""
        return self._append(role=role, kind=kind, content=content, thought=thought, mistake=mistake)

    def add_call(self, role: Role, kind: Tag, argument: str, thought: str, tool: Tool, mistake: bool = False) -> str:
        """Call the tool, record the activation, return the observation.

        Raises:
            ToolFailure: the tool's infrastructure failed (the call is not recorded: it taught nothing).
            OutOfBudget: `tool_calls` calls were made already.
        """
        if sum(event.tool is not None for event in self.events) >= self.tool_calls:
            raise OutOfBudget(f"more than {self.tool_calls} tool calls")
        result = tool.call(argument)
        if result.status in {ToolStatus.INFRA_ERROR, ToolStatus.TIMEOUT, ToolStatus.RATE_LIMITED}:
            raise ToolFailure(f"{tool.name}({argument!r}): {result.status}: {result.text}")
        self._append(
            role=role,
            kind=kind,
            content=argument,
            thought=thought,
            tool=tool.name,
            argument=argument,
            tool_status=result.status,
            observation=result.text,
            observation_sha256=text_sha256(result.text),
            mistake=mistake,
        )
        return result.text

    def _append(self, **fields: object) -> Event:
        parent = self.events[-1].id if self.events else None
        event = Event.model_validate({"id": event_id(self.task_id, len(self.events)), "parent": parent, **fields})
        self.events.append(event)
        return event


@dataclass(frozen=True)
class Planner:
    """Writes what is to be found, in normal form: `currency of country of Mombasa`."""

    journal: Journal

    def plan(self, goal: str) -> None:
        """Put the goal down; at the start with a thought of its own, later within the turn that asked for it."""
        self.journal.add(Role.PLANNER, Tag.PLAN, goal, "" if self.journal.events else "What is asked?")


@dataclass(frozen=True)
class Searcher:
    """Asks the search tool."""

    journal: Journal
    kind: Tag
    tool: Tool

    def search(self, query: str, thought: str, mistake: bool = False) -> str:
        """Search and return the observation."""
        return self.journal.add_call(Role.SEARCHER, self.kind, query, thought, self.tool, mistake)


@dataclass(frozen=True)
class Reader:
    """Opens a page by its title."""

    journal: Journal
    kind: Tag
    tool: Tool

    def read(self, title: str, relation: str, mistake: bool = False) -> str:
        """Read a page and return the observation. Right after a reflection the turn has its thought already."""
        thought = "" if self.journal.same_turn else f"No {phrase(relation)}. Read {title}."
        return self.journal.add_call(Role.READER, self.kind, title, thought, self.tool, mistake)


@dataclass(frozen=True)
class Reflector:
    """Says what went wrong. A grade of poor asks for a new plan, a grade of fair for a better call."""

    journal: Journal

    def wrong_query(self, relation: str) -> None:
        """The results of a query lack the relation."""
        content = f"Results lack the {phrase(relation)}: fair."
        self.journal.add(Role.REFLECTOR, Tag.REFLECTION, content, "Wrong query.")

    def wrong_page(self, title: str, subject: str) -> None:
        """The page read is about something else."""
        self.journal.add(Role.REFLECTOR, Tag.REFLECTION, f"About {title}, not {subject}: poor.", "Wrong page.")


@dataclass(frozen=True)
class Verifier:
    """Suggests an answer, checks it, and gives it."""

    journal: Journal

    def suggest(self, value: str, thought: str, mistake: bool = False) -> None:
        """Put an answer forward."""
        self.journal.add(Role.VERIFIER, Tag.SUGGESTED_ANSWER, value, thought, mistake)

    def support(self, titles: Sequence[str]) -> None:
        """Find the answer supported by the page it stands on, or, compared, by several pages."""
        source = titles[0] if len(titles) == 1 else "both pages"
        content = f"Supported by {source}. Score: {GOOD_SCORE}"
        self.journal.add(Role.VERIFIER, Tag.DOUBLE_CHECK, content)

    def reject(self, value: str, found: str, wanted: str) -> None:
        """Find the answer to be a value on the way."""
        content = f"{value} is the {phrase(found)}, not the {phrase(wanted)}. Score: {POOR_SCORE}"
        self.journal.add(Role.VERIFIER, Tag.DOUBLE_CHECK, content)

    def answer(self, value: str, thought: str = "") -> None:
        """Give the final answer."""
        self.journal.add(Role.VERIFIER, Tag.ANSWER, value, thought)


def goal_text(steps: Sequence[SolutionStep], values: Mapping[int, str]) -> str:
    """What is left to find, in normal form, given the values of the steps done.

    `population of capital of country of +41`, and with the country found `population of capital of Switzerland`;
    `larger population of Kabul or La Plata`, and with one side found `population of La Plata`.
    """
    return _goal(steps, len(steps) - 1, values)


def _goal(steps: Sequence[SolutionStep], number: int, values: Mapping[int, str]) -> str:
    step = steps[number]
    if step.operation == Operation.LOOKUP:
        return f"{phrase(step.relation)} of {_subject(steps, number, values)}"
    sides = [side for side in step.inputs if side not in values]
    if len(sides) == 1:
        return _goal(steps, sides[0], values)
    names = " or ".join(_subject(steps, side, values) for side in sides)
    return f"{step.operation} {phrase(steps[sides[0]].relation)} of {names}"


def _subject(steps: Sequence[SolutionStep], number: int, values: Mapping[int, str]) -> str:
    step = steps[number]
    if not step.inputs:
        return step.subject
    return values[step.inputs[0]] if step.inputs[0] in values else _goal(steps, step.inputs[0], values)
