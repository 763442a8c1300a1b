"""The executor: works on one sub-task, turn by turn, several calls at once where the model asks for several.

With the native protocol calls come as `tool_calls`; with the JSON protocol as one object a turn. Either way a turn
without a call is the report that ends the attempt.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

from afm_core.config import AgentConfig, GrammarName, ToolProtocol
from afm_core.data import Status, Tag
from afm_core.engines.backbone import CallStatus, ChatReply, ChatRole, Exchange, Message, ToolCall
from afm_core.teacher.team.calls import argument_lines, dispatch, tool_specs, turn_format
from afm_core.teacher.team.desk import REPAIRS, AgentFailed, Desk, RolloutEnded, again, system, unreadable, user
from afm_core.teacher.team.journal import Journal
from afm_core.teacher.team.prompts import executor, question_and_notes
from afm_core.teacher.team.record import Activation, CallRecord, Question, TeamEvent, TeamRole
from afm_core.teacher.team.replies import TurnReply, UnreadableReply, read_reply, spoken
from afm_core.tools.protocol import Tool, ToolStatus

_FAILED = frozenset({ToolStatus.INFRA_ERROR, ToolStatus.TIMEOUT, ToolStatus.RATE_LIMITED})


@dataclass
class ToolBudget:
    """Tool calls that a rollout has left."""

    left: int

    def take(self) -> bool:
        """Whether there was one left, which is taken."""
        self.left -= 1
        return self.left >= 0


@dataclass(frozen=True)
class _Turn:
    """What a model said in a turn: calls, or a report."""

    thought: str
    calls: tuple[ToolCall, ...]
    report: str


@dataclass
class Executor:
    """Works on sub-tasks of one rollout."""

    desk: Desk
    tools: Mapping[Tag, Tool]
    agent: AgentConfig
    budget: ToolBudget

    async def work(
        self, journal: Journal, question: Question, goal: str, notes: str, lesson: str, parent: str | None
    ) -> tuple[TeamEvent, str]:
        """One attempt: (its last event, the report).

        Raises:
            AgentFailed: no report within the turns, or no readable reply.
            RolloutEnded: a tool's infrastructure failed, or what the desk raises.
        """
        conversation = self._opening(question, goal, notes, lesson)
        for _ in range(self.desk.config.subtask_turns):
            event, turn = await self._turn(journal, conversation, parent)
            if not turn.calls:
                return event, turn.report
            made = await self._call_all(journal, turn.calls, event)
            parent = made[-1].id
            conversation += self._observed(event, turn, made)
        raise AgentFailed(Status.BUDGET_EXHAUSTED, f"no report within {self.desk.config.subtask_turns} turns")

    @property
    def _native(self) -> bool:
        return self.desk.config.tool_protocol is ToolProtocol.NATIVE

    def _opening(self, question: Question, goal: str, notes: str, lesson: str) -> list[Message]:
        grammar = self.agent.grammar
        arguments = "" if self._native else argument_lines(self.tools, grammar)
        more = [f"Your sub-task: {goal}", *([f"An attempt before this one failed: {lesson}"] if lesson else [])]
        return [
            system(executor(self.tools, grammar, arguments)),
            user(question_and_notes(question.text, notes, *more)),
        ]

    async def _turn(self, journal: Journal, conversation: list[Message], parent: str | None) -> tuple[TeamEvent, _Turn]:
        """One readable turn, asked for again where need be; appends what was unreadable to the conversation."""
        native, event, problem = self._native, None, ""
        specs = tool_specs(self.tools, self.agent.grammar) if native else ()
        wanted = None if native else turn_format(self.tools, self.agent.grammar, self.desk.config.structure)
        for _ in range(1 + REPAIRS):
            above = event.id if event else parent
            role, activation = TeamRole.EXECUTOR, Activation.TURN
            began, exchange = await self.desk.send(
                journal, role, activation, conversation, above, tools=specs, wanted=wanted
            )
            turn, problem = _read(exchange, native)
            event = journal.write(
                began,
                parent=above,
                role=role,
                activation=activation,
                exchange=exchange,
                data=None if turn is None else {"thought": turn.thought, "report": turn.report},
                problem=problem,
            )
            if turn is not None:
                return event, turn
            conversation += again(exchange.reply or ChatReply(), problem)
        raise unreadable(TeamRole.EXECUTOR, event, problem)

    async def _call_all(self, journal: Journal, calls: tuple[ToolCall, ...], turn: TeamEvent) -> list[TeamEvent]:
        """Make the calls of a turn at once; their events stand in the order of asking."""
        one_only = self.agent.grammar is GrammarName.CODE
        asked = calls[:1] if one_only else calls
        began = journal.now()
        records = await asyncio.gather(*(dispatch(call, self.tools, self.budget.take) for call in asked))
        events = [
            journal.write(began, parent=turn.id, role=TeamRole.EXECUTOR, activation=Activation.CALL, call=record)
            for record in records
        ]
        failed = next((one for one in records if one.status in _FAILED), None)
        if failed is not None:
            raise RolloutEnded(Status.TOOL_ERROR, f"{failed.name}: {failed.status}: {failed.observation[:500]}")
        return events

    def _observed(self, event: TeamEvent, turn: _Turn, made: list[TeamEvent]) -> list[Message]:
        """How the conversation goes on after the calls; calls beyond the first of a code turn are not repeated."""
        records = [one.call for one in made if one.call is not None]
        said = event.exchange.reply if event.exchange and event.exchange.reply else ChatReply()
        if not self._native:
            text = "\n\n".join(_result_line(number, one) for number, one in enumerate(records, start=1))
            return [Message(role=ChatRole.ASSISTANT, content=said.content), user(text)]
        calls = turn.calls[: len(records)]
        spoken = Message(role=ChatRole.ASSISTANT, content=said.content, tool_calls=calls)
        results = [
            Message(role=ChatRole.TOOL, content=record.observation, tool_call_id=call.id)
            for call, record in zip(calls, records, strict=True)
        ]
        return [spoken, *results]


def _result_line(number: int, record: CallRecord) -> str:
    return f"Result {number} ({record.name}, {record.status}):\n{record.observation}"


def _read(exchange: Exchange, native: bool) -> tuple[_Turn | None, str]:
    """The turn, or why it cannot be used. Calls in a reply that was cut off are never trusted."""
    reply = exchange.reply or ChatReply()
    if exchange.status is CallStatus.TRUNCATED:
        return None, "it was cut off at the limit of its length; be briefer"
    if native:
        text = spoken(reply)
        if not text and not reply.tool_calls:
            return None, "it holds neither a call nor a report"
        return _Turn(text, reply.tool_calls, "" if reply.tool_calls else text), ""
    try:
        read = read_reply(reply.content, TurnReply)
    except UnreadableReply as error:
        return None, str(error)
    calls = tuple(
        ToolCall(id=f"call_{number}", name=one.tool, arguments=json.dumps(one.arguments, ensure_ascii=False))
        for number, one in enumerate(read.calls)
    )
    return _Turn(read.thought, calls, "" if calls else read.report), ""
