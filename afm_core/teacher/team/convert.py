"""From a team's event stream to one chain-of-agents trajectory (docs/teacher.md has the mapping as a table).

    planner: plan ............ <think> thought, facts; <plan> the sub-tasks, a line each
    planner: revise .......... <reflection> assessment and grade (after a rejected answer: <think>); <plan>
    executor: turn ........... <think> what is said beside the calls; a report too (code: <reflection>)
    executor: call ........... <think> why; the tool's tag; <observation>
    critic: review ........... a low score: <reflection> assessment and lesson; else nothing
    summariser ............... nothing: the chain has its whole history
    answerer, verifier ....... <think>, <suggested_answer>, <double_check> with its score, and, accepted, <answer>
                               (mhqa and code have no double check: the answer alone; a rejection is a <reflection>)

Events come in the order of the plan, so parallel branches are linearised the same way whatever the clock did. Replies
that could not be read and calls that were never dispatched taught nothing and are left out, as is a call whose like
stands earlier in the chain with the same result (two branches may ask the same). A critic's reflection says
"weak", never "poor", which in the language demands a new plan at once; the planner's, which one follows, says it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from afm_core.coa import check_trajectory, grammar_for
from afm_core.config import GrammarName
from afm_core.data import TOOL_TAGS, AgentTask, Status, Tag, Trajectory, Usage
from afm_core.rewards import scored
from afm_core.teacher.convert import trajectory_id
from afm_core.teacher.events import TEAM_SOURCE
from afm_core.teacher.team.linear import ChainWriter, Placed
from afm_core.teacher.team.plan import Plan
from afm_core.teacher.team.record import Activation, TeamEvent, TeamRecording
from afm_core.teacher.team.team import ACCEPTED
from afm_core.tools import fold


def convert_team(recording: TeamRecording, reflection_below: int, task: AgentTask | None = None) -> Trajectory | None:
    """The trajectory of a recording, checked against its grammar, and scored if the task is given.

    `provenance["events"]` is a JSON list of event ids, one a segment (see `afm_core.teacher.segment_events`). None if
    nothing of the recording can be placed. Answer and segments are of this recording and of no other.

    Raises:
        ValueError: the recording is not of the task.
    """
    if task is not None and task.id != recording.question.task_id:
        raise ValueError(f"recording of task {recording.question.task_id} converted with task {task.id}")
    chain = _Chain(ChainWriter(grammar_for(recording.question.grammar)), recording, reflection_below)
    placed = chain.write()
    if not placed:
        return None
    return _finished(_trajectory(recording, placed, chain.writer.unplaced), task)


def _finished(trajectory: Trajectory, task: AgentTask | None) -> Trajectory:
    """Checked by the grammar, and scored by the task's verifier where it is known."""
    if task is not None:
        return scored(trajectory, task)
    found = check_trajectory(trajectory)
    return trajectory.model_copy(update={"violations": tuple(one.code.value for one in found)})


def _trajectory(recording: TeamRecording, placed: list[Placed], unplaced: int) -> Trajectory:
    segments = tuple(one.segment for one in placed)
    calls = sum(one.tag in TOOL_TAGS for one in segments)
    replies = [one.exchange.reply for one in recording.events if one.exchange and one.exchange.reply]
    provenance = {
        "events": json.dumps([one.event for one in placed]),
        "rollout": str(recording.rollout),
        "seed": str(recording.seed),
        "model": recording.model,
        **({"failure": recording.failure} if recording.failure else {}),
        **({"unplaced": str(unplaced)} if unplaced else {}),
    }
    source, question = f"{TEAM_SOURCE}{recording.model}", recording.question
    return Trajectory(
        id=trajectory_id(question.task_id, question.grammar, f"{source}#{recording.rollout}", segments),
        task_id=question.task_id,
        question=question.text,
        answer=recording.answer,
        grammar=question.grammar,
        source=source,
        segments=segments,
        status=recording.status,
        usage=Usage(
            turns=calls + (recording.answer is not None),
            tool_calls=calls,
            prompt_tokens=sum(one.tokens.prompt for one in replies),
            sampled_tokens=sum(one.tokens.completion for one in replies),
        ),
        provenance=provenance,
    )


@dataclass
class _Chain:
    """One conversion in progress. `suggested` is the latest answer put forward, `goals` the sub-tasks in words, and
    `observed` what each call gave.
    """

    writer: ChainWriter
    recording: TeamRecording
    reflection_below: int
    suggested: str = ""
    goals: dict[str, str] = field(default_factory=dict)
    observed: dict[tuple[Tag, str], str] = field(default_factory=dict)

    def write(self) -> list[Placed]:
        write: dict[Activation, Callable[[TeamEvent], None]] = {
            Activation.PLAN: self._plan,
            Activation.REVISE: self._revise,
            Activation.TURN: self._turn,
            Activation.CALL: self._call,
            Activation.REVIEW: self._review,
            Activation.SUMMARISE: lambda event: None,
            Activation.SUGGEST: self._suggest,
            Activation.CHECK: self._check,
        }
        for event in self.recording.events:
            if event.data is not None or event.call is not None:
                write[event.activation](event)
        return self.writer.finish()

    @property
    def _checked(self) -> bool:
        """Whether the profile suggests and double-checks its answers."""
        return Tag.SUGGESTED_ANSWER in self.writer.grammar.tags

    @property
    def _code(self) -> bool:
        return self.recording.question.grammar is GrammarName.CODE

    def _plan(self, event: TeamEvent) -> None:
        data = _data(event)
        plan = self._read_plan(event)
        self.writer.think(_sentences(data["thought"], *(f"Known: {fact}" for fact in plan.facts)), event.id)
        self.writer.element((Tag.PLAN,), plan.text(), event.id, "What is asked, and what does it take?")

    def _revise(self, event: TeamEvent) -> None:
        data, plan = _data(event), self._read_plan(event)
        judged = f"{data['assessment']} Progress: {data['grade']}."
        written = plan.text() or "Nothing is left to find out: answer."
        self.writer.think(data["thought"], event.id)
        self.writer.reflect_and_plan(judged, written, event.id, "Is the plan still right?")

    def _read_plan(self, event: TeamEvent) -> Plan:
        data = _data(event)
        plan = Plan.model_validate({"facts": data["facts"], "subtasks": data["subtasks"]})
        self.goals.update({one.id: one.goal for one in plan.subtasks})
        return plan

    def _turn(self, event: TeamEvent) -> None:
        data = _data(event)
        if data["thought"] and data["thought"] != data["report"]:
            self.writer.think(data["thought"], event.id)
        if data["report"]:
            tags = (Tag.REFLECTION,) if self._code else ()
            self.writer.element(tags, data["report"], event.id, self._goal(event))

    def _call(self, event: TeamEvent) -> None:
        call = event.call
        if call is None or call.tag is None or call.argument is None:
            return
        asked = (call.tag, fold(call.argument))
        if self.observed.get(asked) == call.observation:
            return
        self.observed[asked] = call.observation
        self._settle(call.remark or "The result is there.", event)
        self.writer.think(call.thought, event.id)
        self.writer.call(call.tag, call.argument, call.observation, event.id, self._goal(event))

    def _review(self, event: TeamEvent) -> None:
        data = _data(event)
        if data["score"] <= self.reflection_below:
            self.writer.element(
                (Tag.REFLECTION,), _sentences(data["assessment"], data["lesson"]), event.id, self._goal(event)
            )

    def _suggest(self, event: TeamEvent) -> None:
        data = _data(event)
        self.suggested = data["answer"]
        self._settle(data["thought"] or "The result is there.", event)
        self.writer.think(data["thought"], event.id)
        if self._checked:
            self.writer.element((Tag.SUGGESTED_ANSWER,), self.suggested, event.id, "What do the results say?")

    def _check(self, event: TeamEvent) -> None:
        data = _data(event)
        accepted = data["score"] >= ACCEPTED
        if self._checked:
            text = f"{data['check']} Score: {data['score']}"
            self.writer.element((Tag.DOUBLE_CHECK,), text, event.id, "Is it right?")
        elif not accepted:
            self.writer.element((Tag.REFLECTION,), data["check"], event.id, f"Is it {self.suggested}?")
        if accepted and self.recording.status is Status.COMPLETED:
            self.writer.element((Tag.ANSWER,), self.suggested, event.id, "That is the answer.")

    def _settle(self, remark: str, event: TeamEvent) -> None:
        """In the code profile a result is reflected on before anything else may follow."""
        if self._code and self.writer.last is Tag.OBSERVATION:
            self.writer.element((Tag.REFLECTION,), remark, event.id, self._goal(event))

    def _goal(self, event: TeamEvent) -> str:
        return self.goals.get(event.subtask, "") or "What comes next?"


def _data(event: TeamEvent) -> dict[str, Any]:
    assert event.data is not None, "only events that were read are converted"
    return event.data


def _sentences(*parts: str) -> str:
    return " ".join(part.strip() for part in parts if part.strip())
