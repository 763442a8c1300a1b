"""The desk: the one way from an agent to a language model. It counts, seeds, records, and asks again.

The seed of a request follows from the rollout's seed and the event's name, so that no two requests of a stage share
one and a resumed or replayed rollout asks exactly the same. A reply that cannot be read is asked for again with what
was wrong, `REPAIRS` times; each asking is an event of its own.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel

from afm_core.config import TeamConfig
from afm_core.data import Status
from afm_core.engines.backbone import (
    USABLE,
    Backbone,
    CallStatus,
    ChatReply,
    ChatRequest,
    ChatRole,
    Exchange,
    Message,
    Sampling,
    ToolSpec,
)
from afm_core.teacher.team.journal import Journal
from afm_core.teacher.team.record import Activation, TeamEvent, TeamRole
from afm_core.teacher.team.replies import UnreadableReply, read_reply, response_format, spoken

REPAIRS = 2
_TOO_LONG = ("context", "too long", "maximum", "too many tokens")
"""Words of a refusal that say: the request does not fit the model."""

ReplyT = TypeVar("ReplyT", bound=BaseModel)


class RolloutEnded(Exception):
    """A rollout cannot go on; `status` says how it ended."""

    def __init__(self, status: Status, failure: str) -> None:
        super().__init__(failure)
        self.status = status


class AgentFailed(RolloutEnded):
    """One agent's replies stayed useless. A sub-task fails by it; on the main line the rollout ends."""


@dataclass
class Desk:
    """What the agents of one rollout share. `calls` counts model calls."""

    backbone: Backbone
    config: TeamConfig
    model: str
    seed: int
    calls: int = field(default=0, init=False)

    async def ask(
        self,
        journal: Journal,
        role: TeamRole,
        activation: Activation,
        messages: Sequence[Message],
        form: type[ReplyT],
        parent: str | None,
    ) -> tuple[TeamEvent, ReplyT]:
        """Ask for an object; the event that holds it, and what was read.

        Raises:
            RolloutEnded: the rollout's model calls are used up, or no server gave a usable reply.
            AgentFailed: no readable reply after `REPAIRS` more askings.
        """
        conversation, event, problem = list(messages), None, ""
        wanted = response_format(form, self.config.structure)
        for _ in range(1 + REPAIRS):
            above = event.id if event else parent
            began, exchange = await self.send(journal, role, activation, conversation, above, wanted=wanted)
            said = exchange.reply or ChatReply()
            data, problem = _read(exchange, form)
            event = journal.write(
                began,
                parent=above,
                role=role,
                activation=activation,
                exchange=exchange,
                data=data.model_dump(mode="json") if data is not None else None,
                problem=problem,
            )
            if data is not None:
                return event, data
            conversation += again(said, problem)
        raise unreadable(role, event, problem)

    async def send(
        self,
        journal: Journal,
        role: TeamRole,
        activation: Activation,
        messages: Sequence[Message],
        parent: str | None,
        *,
        tools: Sequence[ToolSpec] = (),
        wanted: dict[str, object] | None = None,
    ) -> tuple[float, Exchange]:
        """Send one request for the journal's next event, which the caller writes; (when it began, a usable exchange).

        Raises RolloutEnded as `ask` does; an exchange without a usable reply is written here.
        """
        if self.calls >= self.config.model_calls:
            raise RolloutEnded(Status.BUDGET_EXHAUSTED, f"more than {self.config.model_calls} model calls")
        self.calls += 1
        sampling = Sampling(
            temperature=self.config.temperature,
            top_p=self.config.top_p,
            max_tokens=self.config.reply_tokens,
            seed=request_seed(self.seed, journal.next_id()),
        )
        request = ChatRequest(
            model=self.model,
            messages=tuple(messages),
            sampling=sampling,
            tools=tuple(tools),
            response_format=wanted,
        )
        began = journal.now()
        exchange = await self.backbone.complete(request)
        if exchange.status not in USABLE:
            error = _unusable(exchange)
            journal.write(began, parent=parent, role=role, activation=activation, exchange=exchange, problem=str(error))
            raise error
        return began, exchange


def request_seed(seed: int, name: str) -> int:
    """The sampling seed of one request, 31 bits: the widest that every server takes."""
    return int(hashlib.sha256(f"{seed}:{name}".encode()).hexdigest()[:8], 16) >> 1


def system(text: str) -> Message:
    """A system message."""
    return Message(role=ChatRole.SYSTEM, content=text)


def user(text: str) -> Message:
    """A user message."""
    return Message(role=ChatRole.USER, content=text)


def again(said: ChatReply, problem: str) -> list[Message]:
    """The unreadable reply and what is wrong with it, as the conversation goes on."""
    spoken = Message(role=ChatRole.ASSISTANT, content=said.content.strip() or "(nothing)")
    return [spoken, user(f"That reply cannot be used: {problem}. Reply again, in the form that was asked for.")]


def unreadable(role: TeamRole, event: TeamEvent | None, problem: str) -> AgentFailed:
    """The end of an agent whose replies stayed unreadable: cut short is something else than wrong."""
    cut = event is not None and event.exchange is not None and event.exchange.status is CallStatus.TRUNCATED
    status = Status.TRUNCATED if cut else Status.PARSE_ERROR
    return AgentFailed(status, f"no readable reply of the {role} in {1 + REPAIRS} askings: {problem}")


def _read(exchange: Exchange, form: type[ReplyT]) -> tuple[ReplyT | None, str]:
    """What the reply says, or why it says nothing."""
    if exchange.status is CallStatus.TRUNCATED:
        return None, "it was cut off at the limit of its length; be briefer"
    try:
        return read_reply(spoken(exchange.reply or ChatReply()), form), ""
    except UnreadableReply as error:
        return None, str(error)


def _unusable(exchange: Exchange) -> RolloutEnded:
    """No server gave a reply: that says nothing about the team, unless the request was too long for the model."""
    detail = exchange.attempts[-1].detail if exchange.attempts else ""
    if exchange.status is CallStatus.REFUSED and any(word in detail.lower() for word in _TOO_LONG):
        return RolloutEnded(Status.TRUNCATED, f"a request did not fit the model: {detail}")
    return RolloutEnded(Status.ABORTED, f"no reply from {exchange.request.model}: {exchange.status}, {detail}")
