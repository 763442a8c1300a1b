"""A shard of tasks, each demonstrated several times at once; every finished rollout is handed on before anything else.

The unit that is never repeated is the rollout: one that was finished before (by an attempt that was killed) is taken as
it is and asks nothing again. An outage or a wrong configuration ends the shard; anything less ends a rollout with a
status of its own.
"""

import asyncio
import hashlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from afm_core.config import TeamConfig
from afm_core.data import AgentTask, Trajectory
from afm_core.store import StageInterrupted
from afm_core.teacher.team.choice import Choice, Judge, choose, number_of
from afm_core.teacher.team.convert import convert_team
from afm_core.teacher.team.record import Question, TeamRecording, rollout_id
from afm_core.teacher.team.team import Rollout, Setting, solve
from afm_core.teacher.team.tips import Tip, mine, tips_for

_POLL_SECONDS = 0.2

Keep = Callable[[TeamRecording], None]
"""Makes a finished rollout survive; called from one thread at a time."""


class TaskOutcome(BaseModel):
    """All that became of a task: every rollout's record and trajectory, and which one is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_id: str
    recordings: tuple[TeamRecording, ...] = ()
    trajectories: tuple[Trajectory, ...] = ()
    choice: Choice


@dataclass(frozen=True)
class ShardResult:
    """A finished shard: outcomes in the order of its tasks, and the tips mined from its failures."""

    outcomes: tuple[TaskOutcome, ...]
    tips: tuple[Tip, ...]


@dataclass(frozen=True)
class Shard:
    """What is to be done: tasks, the tips known before, rollouts finished before (by `rollout_id`)."""

    tasks: Sequence[AgentTask]
    tips: Sequence[Tip] = ()
    done: Mapping[str, TeamRecording] = field(default_factory=dict)


async def play_shard(
    shard: Shard, setting: Setting, keep: Keep, stopping: threading.Event | None = None
) -> ShardResult:
    """Demonstrate every task of the shard.

    Raises:
        StageInterrupted: `stopping` was set; rollouts that were not finished are dropped.
        BackboneGone, ConfigError: no demonstration is possible (see afm_core.engines.backbone).
    """
    done = dict(shard.done)
    waiting = _missing(shard, setting, done)
    lock = asyncio.Lock()

    async def worker() -> None:
        for question, rollout in waiting:
            recording = await solve(question, setting, rollout)
            async with lock:  # a store may be far away: never wait for it in the loop
                await asyncio.to_thread(keep, recording)
            done[recording.id] = recording

    await _all_of([worker() for _ in range(setting.config.concurrency)], stopping)
    judge = Judge(setting.backbone, setting.config)
    outcomes = await asyncio.gather(*(_outcome(task, setting.config, done, judge) for task in shard.tasks))
    failed = [one for outcome in outcomes for one in outcome.trajectories if one.reward == 0.0]
    tasks = {task.id: task for task in shard.tasks}
    model = setting.config.judge_model or setting.config.models[0]
    tips = await mine(failed, tasks, shard.tips, model, setting.backbone, setting.config)
    return ShardResult(tuple(outcomes), tuple(tips))


def question_of(task: AgentTask, setting: Setting) -> Question:
    """What the team is given of a task."""
    return Question(task_id=task.id, text=task.question, grammar=setting.agent.grammar)


def kept(outcome: TaskOutcome, count: int) -> list[Trajectory]:
    """The trajectories that go on to curation: the chosen one, then other right ones, `count` at most."""
    by_number = {number_of(one): one for one in outcome.trajectories}
    ranked = [by_number[number] for number in outcome.choice.ranking]
    others = [one for one in ranked[1:] if one.reward == 1.0 and not one.violations]
    return [*ranked[:1], *others][:count]


def _missing(shard: Shard, setting: Setting, done: Mapping[str, TeamRecording]) -> Iterator[tuple[Question, Rollout]]:
    """The rollouts still to be played, task by task."""
    config, models = setting.config, setting.config.models
    for task in shard.tasks:
        question = question_of(task, setting)
        tips = tips_for(question.text, shard.tips, config.tips)
        for number in range(config.rollouts):
            if rollout_id(task.id, number) not in done:
                seed = _seed(config.seed, task.id, number)
                yield question, Rollout(number, models[number % len(models)], seed, tips)


def _seed(seed: int, task_id: str, number: int) -> int:
    return int(hashlib.sha256(f"{seed}:{task_id}:{number}".encode()).hexdigest()[:8], 16)


async def _outcome(task: AgentTask, config: TeamConfig, done: Mapping[str, TeamRecording], judge: Judge) -> TaskOutcome:
    recordings = tuple(done[rollout_id(task.id, number)] for number in range(config.rollouts))
    converted = (convert_team(one, config.reflection_below, task) for one in recordings)
    trajectories = tuple(one for one in converted if one is not None)
    choice = await choose(task.id, task.question, trajectories, judge)
    return TaskOutcome(task_id=task.id, recordings=recordings, trajectories=trajectories, choice=choice)


async def _all_of(workers: Sequence[Coroutine[object, object, None]], stopping: threading.Event | None) -> None:
    """Run workers to their end; the first error, or being told to stop, cancels the others."""
    running = [asyncio.create_task(one) for one in workers]
    try:
        while running:
            ended, pending = await asyncio.wait(running, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
            for one in ended:
                one.result()
            running = list(pending)
            if stopping is not None and stopping.is_set() and running:
                raise StageInterrupted("told to stop within a shard: finished rollouts are kept")
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
