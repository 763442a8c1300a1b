"""A team at work on one question: plan, sub-tasks as the plan's graph allows, reviews, revisions, an answer, its check.

    plan ─► ready sub-tasks at once ─► review ─(low score)─► reflect, try again ─► notes ─► revise? ─► answer ─► check
              ▲                                                                      │                        │
              └──────────────────────────────────────────────────────────────────────┴────(rejected)──────────┘

Departs from OAgents (arXiv 2506.15741) in this: scoring, reflection and the lesson are one reply, asked for once an
attempt; a sub-task that one agent spoils costs that sub-task and not the run; every decision stands in the record.
Nothing here sees a task: the team is given a Question, which has no answers.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from afm_core.config import AgentConfig, TeamConfig
from afm_core.data import Status, Tag
from afm_core.engines.backbone import Backbone, Message
from afm_core.teacher.team import prompts
from afm_core.teacher.team.desk import AgentFailed, Desk, RolloutEnded, system, user
from afm_core.teacher.team.executor import Executor, ToolBudget
from afm_core.teacher.team.journal import Journal
from afm_core.teacher.team.notes import Note, Notes
from afm_core.teacher.team.plan import Grade, Plan, Subtask
from afm_core.teacher.team.prompts import question_and_notes
from afm_core.teacher.team.record import Activation, Question, TeamRecording, TeamRole, ToolCard, rollout_id
from afm_core.teacher.team.replies import (
    CheckReply,
    PlanReply,
    ReplyT,
    ReviewReply,
    RevisionReply,
    SuggestReply,
    SummaryReply,
)
from afm_core.tools.protocol import Tool

ACCEPTED = 3
"""A check's score from which an answer is given (see the grammar of double_check)."""


@dataclass(frozen=True)
class Setting:
    """What all rollouts of a stage share."""

    backbone: Backbone
    config: TeamConfig
    agent: AgentConfig
    tools: Mapping[Tag, Tool]


@dataclass(frozen=True)
class Rollout:
    """Which rollout of a question: its number, the model that plays the team, its seed, the tips it is shown."""

    number: int
    model: str
    seed: int
    tips: tuple[str, ...] = ()


async def solve(question: Question, setting: Setting, rollout: Rollout) -> TeamRecording:
    """Play one rollout to its end, whatever that is; the recording says how it ended.

    Raises what ends a whole stage, and only that: BackboneGone, and ConfigError of a wrong key or model.
    """
    team = _Team.create(question, setting, rollout)
    status, failure, answer = Status.COMPLETED, "", None
    try:
        async with asyncio.timeout(setting.config.seconds):
            answer = await team.run()
    except RolloutEnded as error:
        status, failure = error.status, str(error)
    except TimeoutError:
        status, failure = Status.TIMEOUT, f"no answer within {setting.config.seconds:g} s"
    return TeamRecording(
        question=question,
        tools=tuple(
            ToolCard(tag=tag, name=tool.name, description=tool.description) for tag, tool in setting.tools.items()
        ),
        rollout=rollout.number,
        model=rollout.model,
        seed=rollout.seed,
        tips=rollout.tips,
        events=tuple(team.journal.events()),
        status=status,
        answer=answer,
        failure=failure,
    )


@dataclass
class _Team:
    """The state of one rollout. `latest` is the event that the next one on the main line acts upon."""

    question: Question
    setting: Setting
    rollout: Rollout
    desk: Desk
    journal: Journal
    executor: Executor
    notes: Notes = field(default_factory=Notes)
    plans: int = 0
    latest: str | None = None

    @classmethod
    def create(cls, question: Question, setting: Setting, rollout: Rollout) -> "_Team":
        desk = Desk(setting.backbone, setting.config, rollout.model, rollout.seed)
        budget = ToolBudget(setting.agent.budget.tool_calls)
        journal = Journal(rollout_id(question.task_id, rollout.number), Journal.now())
        executor = Executor(desk, setting.tools, setting.agent, budget)
        return cls(question, setting, rollout, desk, journal, executor)

    async def run(self) -> str:
        """Plan, work, answer; again after a rejected answer. Returns the answer given."""
        plan = await self._plan()
        while True:
            await self._carry_out(plan)
            answer, objection = await self._answer()
            if not objection:
                return answer
            if self.plans > self.setting.config.revisions:
                raise RolloutEnded(Status.BUDGET_EXHAUSTED, f"the answer was rejected: {objection}")
            plan = await self._revise(plan, f"The answer {answer!r} was rejected: {objection}")

    async def _plan(self) -> Plan:
        instruction = prompts.planner(self.setting.tools, self.rollout.tips)
        asked = [system(instruction), user(f"Question: {self.question.text}")]
        reply = await self._ask(TeamRole.PLANNER, Activation.PLAN, asked, PlanReply)
        return self._begin(reply.plan())

    async def _revise(self, plan: Plan, reason: str) -> Plan:
        shown = question_and_notes(self.question.text, self.notes.text(), f"Plan:\n{plan.text()}", reason)
        asked = [system(prompts.reviser(self.setting.tools)), user(shown)]
        reply = await self._ask(TeamRole.PLANNER, Activation.REVISE, asked, RevisionReply)
        return self._begin(reply.plan())

    def _begin(self, plan: Plan) -> Plan:
        self.plans += 1
        self.notes.facts = plan.facts or self.notes.facts
        return plan

    async def _carry_out(self, plan: Plan) -> None:
        """Work through the plan in rounds, revising it on the way; ends when nothing is left that can be done."""
        config = self.setting.config
        results: dict[str, str] = {}
        failed: set[str] = set()
        since = 0
        while ready := plan.ready(results, failed)[: config.parallel]:
            outcomes = await self._round(ready)
            for subtask, note in zip(ready, outcomes, strict=True):
                self.notes.notes.append(note)
                results.update({subtask.id: note.text} if note.found else {})
                failed.update(() if note.found else {subtask.id})
            since += len(ready)
            await self._fold_notes()
            reason = self._reason_to_revise(ready, outcomes, since, bool(plan.ready(results, failed)))
            if reason and self.plans <= config.revisions:
                plan, results, failed, since = await self._revise(plan, reason), {}, set(), 0

    def _reason_to_revise(self, ready: Sequence[Subtask], outcomes: Sequence[Note], since: int, more: bool) -> str:
        lost = [subtask.goal for subtask, note in zip(ready, outcomes, strict=True) if not note.found]
        if lost:
            return "Failed: " + "; ".join(lost)
        if more and since >= self.setting.config.replan_every:
            return f"{since} sub-tasks are done; is the rest of the plan still right?"
        return ""

    async def _round(self, ready: Sequence[Subtask]) -> list[Note]:
        """Work on sub-tasks at once. The first in the plan's order that ends the rollout is raised, after all ended."""
        journals = [self.journal.child(f"{self.plans}.{subtask.id}", subtask.id) for subtask in ready]
        known = self.notes.text()
        branches = [self._pursue(journal, subtask, known) for journal, subtask in zip(journals, ready, strict=True)]
        ended = await asyncio.gather(*branches, return_exceptions=True)
        for one in ended:
            if isinstance(one, BaseException):
                raise one
        done = [one for one in ended if not isinstance(one, BaseException)]
        self.latest = done[-1][1] or self.latest
        return [note for note, _ in done]

    async def _pursue(self, journal: Journal, subtask: Subtask, known: str) -> tuple[Note, str | None]:
        """Attempts at one sub-task until one is good enough: (what came of it, the last event)."""
        note, lesson, parent = Note(subtask.goal, "", found=False), "", self.latest
        for attempt in range(1, self.setting.config.subtask_attempts + 1):
            journal.attempt = attempt
            try:
                event, report = await self.executor.work(journal, self.question, subtask.goal, known, lesson, parent)
            except AgentFailed as error:
                note, lesson, parent = Note(subtask.goal, str(error), found=False), str(error), journal.last() or parent
                continue
            review, parent = await self._review(journal, subtask, report, event.id)
            if review is None or review.score > self.setting.config.reflection_below:
                return Note(subtask.goal, report), parent
            note, lesson = Note(subtask.goal, f"{report} ({review.assessment})", found=False), review.lesson
            if review.grade is Grade.POOR:
                break
        return note, parent

    async def _review(
        self, journal: Journal, subtask: Subtask, report: str, parent: str
    ) -> tuple[ReviewReply | None, str]:
        """The critic's word on an attempt, None if it could not be read: then the report stands."""
        shown = question_and_notes(
            self.question.text,
            attempt_lines(journal),
            f"Sub-task: {subtask.goal}",
            f"Report: {report}",
        )
        asked = [system(prompts.CRITIC), user(shown)]
        try:
            event, review = await self.desk.ask(journal, TeamRole.CRITIC, Activation.REVIEW, asked, ReviewReply, parent)
        except AgentFailed:  # recorded in the journal's events
            return None, journal.last() or parent
        return review, event.id

    async def _fold_notes(self) -> None:
        """Summarise older notes if they have grown too long; if that fails they stay as they are."""
        config = self.setting.config
        older = self.notes.to_fold(config.memory_characters, config.memory_recent)
        if not older:
            return
        shown = f"Question: {self.question.text}\n\nNotes:\n{older}"
        asked = [system(prompts.SUMMARISER), user(shown)]
        try:
            _, reply = await self.desk.ask(
                self.journal, TeamRole.SUMMARISER, Activation.SUMMARISE, asked, SummaryReply, self.latest
            )
        except AgentFailed:  # recorded in the journal's events
            return
        self.notes.fold(reply.summary, config.memory_recent)

    async def _answer(self) -> tuple[str, str]:
        """Put an answer forward and have it checked: (the answer, the objection to it or "")."""
        shown = question_and_notes(self.question.text, self.notes.text())
        asked = [system(prompts.answerer(self.question.grammar)), user(shown)]
        suggested = await self._ask(TeamRole.ANSWERER, Activation.SUGGEST, asked, SuggestReply)
        shown = question_and_notes(self.question.text, self.notes.text(), f"Proposed answer: {suggested.answer}")
        asked = [system(prompts.VERIFIER), user(shown)]
        checked = await self._ask(TeamRole.VERIFIER, Activation.CHECK, asked, CheckReply)
        return suggested.answer, "" if checked.score >= ACCEPTED else checked.check

    async def _ask(
        self, role: TeamRole, activation: Activation, asked: Sequence[Message], form: type[ReplyT]
    ) -> ReplyT:
        """Ask on the main line: the next event there acts upon this one."""
        event, reply = await self.desk.ask(self.journal, role, activation, asked, form, self.latest)
        self.latest = event.id
        return reply


def attempt_lines(journal: Journal) -> str:
    """What the tools said in a branch's present attempt, as a critic reads it."""
    lines = [
        f"- {event.call.name}({event.call.argument or event.call.arguments}): {event.call.observation}"
        for event in journal.events()
        if event.call is not None and event.attempt == journal.attempt
    ]
    return "\n".join(lines) or "(no tool was called)"
