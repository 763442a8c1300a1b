"""What agents reply: JSON objects, read strictly. A reply that cannot be read is asked for again, never guessed.

The text around an object (a code fence, a reasoning block) is passed over. Numbers may come as text; a boolean is no
number.
"""

import json
import re
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from afm_core.config import Structure
from afm_core.engines.backbone import ChatReply
from afm_core.teacher.team.plan import Grade, Plan, Subtask

_DROPPED = frozenset({"default", "title", "description", "minLength", "maxLength", "properties", "required"})
_LONGEST_TEXT = 120
_LONGEST_LIST = 3
"""Characters and items of the bounded schemas."""
_MOST_STARTS = 50
"""Places where an object could begin that are tried in one text."""


class UnreadableReply(ValueError):
    """A reply without the object that was asked for; the message is for the model that is asked again."""


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false")
    return value


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Text = Annotated[str, StringConstraints(strip_whitespace=True)]
Said = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
AnswerText = Annotated[str, BeforeValidator(_as_text), StringConstraints(strip_whitespace=True, min_length=1)]
Score10 = Annotated[int, Field(ge=0, le=10), BeforeValidator(_no_boolean)]
Score4 = Annotated[int, Field(ge=1, le=4), BeforeValidator(_no_boolean)]


class _Reply(BaseModel):
    """Unknown fields are passed over: models like to add some."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class PlanReply(_Reply):
    """Facts and sub-tasks. Raises for a graph that is no plan (see afm_core.teacher.team.plan)."""

    thought: Text = ""
    facts: tuple[Said, ...] = ()
    subtasks: tuple[Subtask, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_a_plan(self) -> "PlanReply":
        self.plan()
        return self

    def plan(self) -> Plan:
        """The plan."""
        return Plan(facts=self.facts, subtasks=self.subtasks)


class RevisionReply(PlanReply):
    """A new plan, with what is to be said of the progress so far. No sub-task is left if all is known."""

    assessment: Said
    grade: Grade
    subtasks: tuple[Subtask, ...] = ()


class ReviewReply(_Reply):
    """A score of an attempt, and what to learn from it."""

    score: Score10
    grade: Grade
    assessment: Said
    lesson: Text = ""


class SuggestReply(_Reply):
    """An answer put forward."""

    thought: Text = ""
    answer: AnswerText


class CheckReply(_Reply):
    """A check of an answer: 1 (wrong) to 4 (right)."""

    check: Said
    score: Score4


class SummaryReply(_Reply):
    """Notes made shorter."""

    summary: Said


class AskedCall(_Reply):
    """A call of the JSON protocol."""

    tool: Said
    arguments: dict[str, Any]


class TurnReply(_Reply):
    """A turn of the JSON protocol: calls to make, or the report that ends the sub-task."""

    thought: Text = ""
    calls: tuple[AskedCall, ...] = ()
    report: Text = ""

    @model_validator(mode="after")
    def _does_something(self) -> "TurnReply":
        if not self.calls and not self.report:
            raise ValueError("give calls, or a report that ends the sub-task")
        return self


class RankReply(_Reply):
    """A judge's choice among numbered candidates."""

    reason: Text = ""
    best: Annotated[int, BeforeValidator(_no_boolean)]


class TipReply(_Reply):
    """What a failed run teaches."""

    tip: Said


ReplyT = TypeVar("ReplyT", bound=BaseModel)
_REASONING = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)


def spoken(reply: ChatReply) -> str:
    """What a model says, without the reasoning block that some servers leave at the front of it."""
    return _REASONING.sub("", reply.content).strip()


def read_reply(text: str, form: type[ReplyT]) -> ReplyT:
    """The first object in the text that fits.

    Raises:
        UnreadableReply: no object, or none that fits; says what is wrong with the last one.
    """
    problem = "there is no JSON object in it"
    decoder = json.JSONDecoder()
    start, tried = text.find("{"), 0
    while start >= 0 and tried < _MOST_STARTS:
        tried += 1
        try:
            value, end = decoder.raw_decode(text, start)
            return form.model_validate(value)
        except ValidationError as error:
            problem, start = _told(error), text.find("{", end)
        except (ValueError, RecursionError) as error:
            problem = problem if tried > 1 else f"it is not valid JSON ({error})"
            start = text.find("{", start + 1)
    raise UnreadableReply(problem)


def response_format(form: type[BaseModel], structure: Structure) -> dict[str, Any] | None:
    """What a server is asked to hold the reply to, None for nothing."""
    return format_of(form.__name__, form.model_json_schema(), structure)


def format_of(name: str, schema: dict[str, Any], structure: Structure) -> dict[str, Any] | None:
    """The same for a schema: every property required and no other allowed, as strict servers want it."""
    if structure is Structure.NONE:
        return None
    if structure is Structure.JSON_OBJECT:
        return {"type": "json_object"}
    strict = _strict(schema, structure is Structure.BOUNDED)
    return {"type": "json_schema", "json_schema": {"name": name, "schema": strict, "strict": True}}


def _strict(node: Any, bounded: bool) -> Any:
    """The schema without what strict servers refuse (defaults, titles, lengths), or with lengths for all."""
    if isinstance(node, list):
        return [_strict(one, bounded) for one in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _strict(value, bounded) for key, value in node.items() if key not in _DROPPED}
    if "properties" in node:
        named = {name: _strict(value, bounded) for name, value in node["properties"].items()}
        kept |= {"properties": named, "required": list(named), "additionalProperties": False}
    if bounded and node.get("type") == "string" and "enum" not in node:
        kept["maxLength"] = min(node.get("maxLength", _LONGEST_TEXT), _LONGEST_TEXT)
    if bounded and node.get("type") == "array":
        kept["maxItems"] = min(node.get("maxItems", _LONGEST_LIST), _LONGEST_LIST)
    return kept


def _told(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    return f"field {place!r}: {message}" if place else message
