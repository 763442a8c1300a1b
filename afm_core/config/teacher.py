"""The language-model teacher: its endpoints, its team of agents, its rollouts.

What decides a demonstration (models, sampling, budgets) enters the stage's key; where the models are served, what they
cost and how many requests are in flight does not. Keys of endpoints are never configuration: `key_variable` names the
environment variable that holds one.
"""

from enum import StrEnum
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from afm_core.config.base import NOT_IN_KEY, Positive, Section


class TeacherKind(StrEnum):
    """Who demonstrates the training tasks of a run."""

    SOLUTION = "solution"
    """The solution teacher: walks the known solution paths; no language model (stage `teach`)."""
    TEAM = "team"
    """The language-model team of `team.endpoints` (stage `rollout`)."""


class ToolProtocol(StrEnum):
    """How an executor asks for tools."""

    NATIVE = "native"
    """`tools` and `tool_calls` of the chat interface."""
    JSON = "json"
    """One JSON object a turn, for servers without tool calls."""


class Structure(StrEnum):
    """What a server is asked to hold an agent's JSON reply to (`response_format`)."""

    NONE = "none"
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    """The agent's schema, in the subset that strict providers take; enforced while the reply is sampled."""
    BOUNDED = "bounded"
    """The schema with the longest texts and lists written in (vLLM): a small model's reply then comes to an end."""


class EndpointConfig(Section):
    """One OpenAI-compatible server. Several that serve the same `model` share its requests in turn.

    `concurrency`: requests in flight; the two rates are per minute, 0 for no limit. `timeout_seconds` bounds one whole
    reply. Prices are per million tokens, in whatever currency `execution` has.
    """

    name: str = Field(min_length=1)
    base_url: str
    model: str = Field(min_length=1)
    key_variable: str = ""
    concurrency: Positive = 8
    requests_per_minute: int = Field(default=0, ge=0)
    tokens_per_minute: int = Field(default=0, ge=0)
    timeout_seconds: float = Field(default=300.0, gt=0)
    price_prompt: float = Field(default=0.0, ge=0)
    price_completion: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _address(self) -> Self:
        parts = urlsplit(self.base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"base_url {self.base_url!r} is no http address such as http://127.0.0.1:8000/v1")
        if parts.username or parts.password:
            raise ValueError("base_url must hold no credentials: put the key into the variable of key_variable")
        return self


class ServerConfig(Section):
    """vLLM servers to start on the Ray cluster for a stage: `count` of them, each with `gpus` and `cpus`.

    `source` is a model directory that every node sees (or a hub id), `model` what it is called by; `arguments` are
    vLLM's own, such as ["--tensor-parallel-size", "4"].
    """

    model: str = Field(min_length=1)
    source: str = Field(min_length=1)
    count: Positive = 1
    gpus: int = Field(default=1, ge=0)
    cpus: Positive = 1
    concurrency: Positive = 32
    timeout_seconds: float = Field(default=300.0, gt=0)
    start_seconds: float = Field(default=900.0, gt=0)
    arguments: tuple[str, ...] = ()


class TeamConfig(Section):
    """A team of language-model agents that demonstrates tasks, `rollouts` times each.

    Models are served by `endpoints`, which are there, and by `servers`, which the stage starts on Ray. Rollout i is
    played by `models[i % len(models)]` with a seed of its own (none named: every served model in turn). `judge_model`
    decides ties that the scorer leaves (empty: a fixed order does). `keep` trajectories of a task go to curation at
    most: the chosen one, then other right ones.

    A sub-task takes at most `subtask_turns` model turns and `subtask_attempts` attempts. The plan is revised after
    `replan_every` finished sub-tasks, after a failed one and after a rejected answer, `revisions` times at most. A
    finished attempt is scored 0 to 10; a score of `reflection_below` or less calls for a reflection. `parallel`
    sub-tasks run at once where the plan allows. Notes longer than `memory_characters` are summarised, the latest
    `memory_recent` are left as they are. `model_calls` and `seconds` (waiting for endpoints included) bound a whole
    rollout, as `agent.budget.tool_calls` does. `tips` of failed runs are shown to the planner, `tips_per_shard` are
    mined (0: none). `concurrency` rollouts are played at a time; twice what the endpoints take together fills their
    pauses.
    """

    endpoints: tuple[EndpointConfig, ...] = Field(default=(), json_schema_extra=NOT_IN_KEY)
    servers: tuple[ServerConfig, ...] = Field(default=(), json_schema_extra=NOT_IN_KEY)
    models: tuple[str, ...] = ()
    judge_model: str = ""
    rollouts: Positive = 4
    keep: Positive = 1
    seed: int = 0
    temperature: float = Field(default=0.7, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    reply_tokens: Positive = 1024
    tool_protocol: ToolProtocol = ToolProtocol.NATIVE
    structure: Structure = Structure.NONE
    subtask_turns: Positive = 6
    subtask_attempts: Positive = 2
    replan_every: Positive = 4
    revisions: int = Field(default=3, ge=0)
    reflection_below: int = Field(default=4, ge=0, le=10)
    parallel: Positive = 4
    memory_characters: Positive = 6000
    memory_recent: Positive = 4
    model_calls: Positive = 80
    seconds: float = Field(default=3600.0, gt=0)
    tips: int = Field(default=5, ge=0)
    tips_per_shard: int = Field(default=4, ge=0)
    shard_tasks: Positive = 32
    concurrency: Positive = Field(default=16, json_schema_extra=NOT_IN_KEY)

    @model_validator(mode="before")
    @classmethod
    def _name_models(cls, values: Any) -> Any:
        """Name the models that play if none is named: they decide a demonstration, where they are served does not."""
        if not isinstance(values, dict) or values.get("models"):
            return values
        places = [*_rows(values.get("endpoints")), *_rows(values.get("servers"))]
        return {**values, "models": tuple(dict.fromkeys(name for name in map(_model_of, places) if name))}

    @model_validator(mode="after")
    def _served(self) -> Self:
        names = [one.name for one in self.endpoints]
        if len(set(names)) != len(names):
            raise ValueError("endpoints must have different names")
        served = self._served_models()
        asked = [*self.models, *([self.judge_model] if self.judge_model else [])]
        unserved = [model for model in asked if model not in served]
        if served and unserved:
            raise ValueError(f"no endpoint serves {unserved[0]!r}; served: {', '.join(served)}")
        return self

    @property
    def served(self) -> bool:
        """Whether there is a language model at all."""
        return bool(self.endpoints or self.servers)

    def _served_models(self) -> tuple[str, ...]:
        names = [*(one.model for one in self.endpoints), *(one.model for one in self.servers)]
        return tuple(dict.fromkeys(names))


def _rows(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _model_of(place: Any) -> str:
    name = place.get("model") if isinstance(place, dict) else getattr(place, "model", None)
    return name if isinstance(name, str) else ""
