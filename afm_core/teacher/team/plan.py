"""A plan: what is known, and sub-tasks that need one another's results, a directed graph without a cycle."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

MOST_SUBTASKS = 12


class Grade(StrEnum):
    """How well something went. Poor calls for a new plan."""

    GOOD = "good"
    FAIR = "fair"
    POOR = "poor"


def _name(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Name = Annotated[str, BeforeValidator(_name), StringConstraints(strip_whitespace=True, min_length=1, max_length=40)]


class Subtask(BaseModel):
    """One thing to find out. `depends_on` names the sub-tasks whose results it needs."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: Name
    goal: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    depends_on: tuple[Name, ...] = ()


class Plan(BaseModel):
    """Facts and sub-tasks, in the planner's order.

    Raises ValueError for too many sub-tasks, two of one name, a dependence on an unknown one, or a circle.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    facts: tuple[str, ...] = ()
    subtasks: tuple[Subtask, ...] = Field(default=(), max_length=MOST_SUBTASKS)

    @model_validator(mode="after")
    def _graph(self) -> Self:
        names = [one.id for one in self.subtasks]
        if len(set(names)) != len(names):
            raise ValueError(f"sub-tasks must have different ids, not {', '.join(names)}")
        for one in self.subtasks:
            unknown = [name for name in one.depends_on if name not in names]
            if unknown:
                raise ValueError(f"sub-task {one.id} depends on {unknown[0]}, which is not in the plan")
        self.order()
        return self

    def order(self) -> tuple[Subtask, ...]:
        """The sub-tasks so that each stands after those it needs; among equals the planner's order.

        Raises ValueError for a circle.
        """
        left, done, ordered = list(self.subtasks), set[str](), list[Subtask]()
        while left:
            following = next((one for one in left if done.issuperset(one.depends_on)), None)
            if following is None:
                raise ValueError(f"sub-tasks depend on one another in a circle: {', '.join(one.id for one in left)}")
            left.remove(following)
            done.add(following.id)
            ordered.append(following)
        return tuple(ordered)

    def ready(self, results: Mapping[str, str], failed: Collection[str] = ()) -> tuple[Subtask, ...]:
        """The sub-tasks that can be worked on now: not done, not failed, everything they need is there."""
        return tuple(
            one
            for one in self.subtasks
            if one.id not in results and one.id not in failed and all(name in results for name in one.depends_on)
        )

    def text(self) -> str:
        """The plan in words: a line a sub-task, `2. goal (after 1)`; numbered by place, whatever the ids."""
        number = {one.id: place for place, one in enumerate(self.order(), start=1)}
        lines = []
        for one in self.order():
            after = ", ".join(str(number[name]) for name in one.depends_on)
            lines.append(f"{number[one.id]}. {one.goal}" + (f" (after {after})" if after else ""))
        return "\n".join(lines)
