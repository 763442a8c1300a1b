"""One policy solving one task: a state machine that knows no engine, no thread and no tool.

Token in, token out: the next prompt is the previous prompt, the sampled ids as they were sampled, and the observation's
ids; nothing is decoded and encoded again. The caller (afm_core.rollout.pool) carries requests, calls and results.
Token budgets count what follows the prompt: sampled and observation tokens.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from afm_core.coa import closed_book_prompt, grammar_for, prompt, stop_strings
from afm_core.config import AgentConfig
from afm_core.data import AgentTask, Origin, Segment, Status, Tag, Trajectory, Usage
from afm_core.engines import FinishReason, Generation, GenerationRequest
from afm_core.rewards import scored
from afm_core.rollout.observation import observation_segment
from afm_core.rollout.reading import BadCall, Ended, ToolCall, read_closed_book, read_turn
from afm_core.tokens import chat_prompt_ids
from afm_core.tools.protocol import Tool, ToolResult, ToolStatus

_TOOL_FAILED = frozenset({ToolStatus.INFRA_ERROR, ToolStatus.RATE_LIMITED})
"""Results that say nothing about the policy; an episode that meets one is not scored."""


class Mode(StrEnum):
    """How a task is put."""

    AGENT = "agent"
    """With tools, in the language of the profile."""
    CLOSED_BOOK = "closed_book"
    """Without tools, one turn: what the model knows by heart."""


@dataclass(frozen=True)
class Setting:
    """What the episodes of one call share. `examples` stand in the prompt (few-shot).

    policy_version: of the engine when the episode starts; it becomes the trajectory's source.
    """

    tokenizer: Any
    agent: AgentConfig
    tools: dict[Tag, Tool]
    policy_version: str
    max_length: int
    mode: Mode = Mode.AGENT
    examples: Sequence[Trajectory] = ()
    temperature: float = 0.0
    seed: int = 0


@dataclass
class Episode:
    """One attempt. Ask for `next_request`, give its generation to `receive`, a call's result to `observe`.

    `status` is None while it goes on. `sample` numbers the attempts at one task.
    """

    task: AgentTask
    setting: Setting
    sample: int = 0
    clock: Callable[[], float] = time.monotonic
    status: Status | None = field(init=False, default=None)
    error: str = field(init=False, default="")
    answer: str | None = field(init=False, default=None)
    turns: int = field(init=False, default=0)
    tool_calls: int = field(init=False, default=0)
    sampled_tokens: int = field(init=False, default=0)
    observation_tokens: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        text = prompt_text(self.task, self.setting)
        self.prompt_ids = tuple(chat_prompt_ids(self.setting.tokenizer, text))
        self.ids = list(self.prompt_ids)
        self.segments = [Segment(origin=Origin.PROMPT, text=text, token_ids=self.prompt_ids)]
        setting = self.setting
        identity = (self.task.id, text, setting.mode, self.sample, setting.seed, setting.temperature)
        self.id = digest(*identity, setting.policy_version)[:16]
        grammar = grammar_for(setting.agent.grammar)
        self._state = grammar.start()
        closed_book = setting.mode is Mode.CLOSED_BOOK
        self._stop = (f"</{Tag.ANSWER}>",) if closed_book else stop_strings(grammar)
        self._bounded_by_budget = False
        self._started: float | None = None

    @property
    def deadline(self) -> float:
        """When, on `clock`, the wall-clock budget ends; infinite before the first request."""
        return float("inf") if self._started is None else self._started + self.setting.agent.budget.seconds

    def next_request(self) -> GenerationRequest | None:
        """The next turn's request, or None if a budget ended the episode."""
        assert self.status is None, "the episode is over"
        budget = self.setting.agent.budget
        self._started = self.clock() if self._started is None else self._started
        left = budget.total_tokens - self.sampled_tokens - self.observation_tokens
        room = self.setting.max_length - len(self.ids)
        if self.clock() >= self.deadline:
            self.end(Status.TIMEOUT)
        elif self.turns >= budget.turns or left <= 0:
            self.end(Status.BUDGET_EXHAUSTED)
        elif room <= 0 and not self.turns:
            self.end(Status.ABORTED, f"a prompt of {len(self.ids)} tokens does not fit {self.setting.max_length}")
        elif room <= 0:
            self.end(Status.TRUNCATED)
        if self.status is not None:
            return None
        self._bounded_by_budget = left < min(budget.turn_tokens, room)
        self.turns += 1
        return GenerationRequest(
            id=f"{self.id}/{self.turns}",
            prompt_ids=tuple(self.ids),
            max_new_tokens=min(budget.turn_tokens, left, room),
            stop=self._stop,
            temperature=self.setting.temperature,
            seed=seed_of(self.setting.seed, self.task.id, self.sample, self.turns),
            session=self.id,
        )

    def receive(self, generation: Generation, policy_version: str) -> ToolCall | None:
        """Take a turn that the policy of this version sampled (weights may be replaced between an episode's turns).

        Returns the call to make; None: the episode ended, or goes on with `next_request`.
        """
        segment = Segment(
            origin=Origin.SAMPLED,
            text=generation.text,
            token_ids=generation.token_ids,
            logprobs=generation.logprobs,
            policy_version=policy_version,
        )
        self.segments.append(segment)
        self.ids.extend(generation.token_ids)
        self.sampled_tokens += len(generation.token_ids)
        if self.setting.mode is Mode.CLOSED_BOOK:
            outcome = read_closed_book(generation)
        else:
            outcome = read_turn(generation, self._state, frozenset(self.setting.tools), len(self.segments) - 1)
        if isinstance(outcome, ToolCall):
            if self.tool_calls >= self.setting.agent.budget.tool_calls:
                self.end(Status.BUDGET_EXHAUSTED)
                return None
            self.tool_calls += 1
            return outcome
        if isinstance(outcome, BadCall):
            self._observe(outcome.message)
        elif isinstance(outcome, Ended):
            self._end_turn(outcome, generation)
        return None

    def observe(self, result: ToolResult) -> None:
        """Take a call's result. A failure of the tool's infrastructure ends the episode unscored."""
        if result.status in _TOOL_FAILED:
            self.end(Status.TOOL_ERROR, f"{result.status}: {result.text[:500]}")
        else:
            self._observe(result.text)

    def end(self, status: Status, error: str = "") -> None:
        """End the episode from outside (stopped, failed) or by a budget."""
        assert self.status is None, "the episode is over"
        self.status, self.error = status, error

    def trajectory(self) -> Trajectory:
        """The finished episode, checked against the grammar and scored."""
        assert self.status is not None, "the episode goes on"
        setting = self.setting
        provenance = {
            "mode": setting.mode.value,
            "sample": str(self.sample),
            "seed": str(setting.seed),
            "temperature": repr(setting.temperature),
        }
        trajectory = Trajectory(
            id=self.id,
            task_id=self.task.id,
            question=self.task.question,
            answer=self.answer,
            grammar=setting.agent.grammar.value,
            source=setting.policy_version,
            segments=tuple(self.segments),
            status=self.status,
            usage=Usage(
                turns=self.turns,
                sampled_tokens=self.sampled_tokens,
                prompt_tokens=len(self.prompt_ids),
                observation_tokens=self.observation_tokens,
                tool_calls=self.tool_calls,
            ),
            provenance={**provenance, "error": self.error} if self.error else provenance,
        )
        return scored(trajectory, self.task, check=setting.mode is Mode.AGENT)

    def _observe(self, text: str) -> None:
        segment = observation_segment(self.setting.tokenizer, text, self.setting.agent.budget.observation_tokens)
        self._state.advance(Tag.OBSERVATION, segment.text, origin=Origin.TOOL)
        self.segments.append(segment)
        self.ids.extend(segment.token_ids or ())
        self.observation_tokens += len(segment.token_ids or ())

    def _end_turn(self, outcome: Ended, generation: Generation) -> None:
        self.answer = outcome.answer
        status = outcome.status
        if status is Status.TRUNCATED and generation.finish is FinishReason.LENGTH and self._bounded_by_budget:
            status = Status.BUDGET_EXHAUSTED
        self.end(status, outcome.error)


def prompt_text(task: AgentTask, setting: Setting) -> str:
    """The user turn of a task under a setting."""
    if setting.mode is Mode.CLOSED_BOOK:
        return closed_book_prompt(task.question, setting.examples)
    agent = setting.agent
    return prompt(task.question, grammar_for(agent.grammar), agent.prompt, setting.tools, setting.examples)


def digest(*parts: object) -> str:
    """SHA-256 of parts, 64 hex digits; borders between parts count."""
    return hashlib.sha256("\0".join(str(part) for part in parts).encode()).hexdigest()


def seed_of(seed: int, task_id: str, sample: int, turn: int) -> int:
    """The sampling seed of one turn, 63 bits: independent across tasks, attempts and turns."""
    return int(digest(seed, task_id, sample, turn)[:16], 16) >> 1
