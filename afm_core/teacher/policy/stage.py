"""The stage `sample`: rejection sampling from our own model, through the same shards, choice and files as the team.

Each task is solved `team.rollouts` times by the rollout engine at `team.temperature`; the scorer keeps the right ones.
What a policy samples is its own record (ids, log-probabilities, policy version), so there are no events and no tips,
and ties are settled by the fixed order: the shortest legal way is the one to learn.
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence

from afm_core.config import AgentConfig, EngineConfig, TeamConfig
from afm_core.data import AgentTask, Tag, Trajectory
from afm_core.engines import Engine, open_engine
from afm_core.rollout import run_episodes
from afm_core.store import StageContext, StageInterrupted, StageResult
from afm_core.teacher.team.choice import choose
from afm_core.teacher.team.shard import ShardResult, TaskOutcome
from afm_core.teacher.team.stage import Advance, run_teacher
from afm_core.teacher.team.tips import Tip
from afm_core.tools.protocol import Tool


def sample(context: StageContext) -> StageResult:
    """Demonstrate every train task with the model of the input `policy` (inputs else as of the stage `rollout`).

    Raises:
        StageInterrupted: told to stop; finished shards are sealed.
    """
    return run_teacher(context, PolicyTeacher)


class PolicyTeacher:
    """Samples from the stage's input `policy`. The engine is opened for the first shard and serves all."""

    def __init__(self, context: StageContext, team: TeamConfig, agent: AgentConfig, tools: Mapping[Tag, Tool]) -> None:
        self._context, self._team, self._agent, self._tools = context, team, agent, tools
        self._engine: Engine | None = None

    def demonstrate(
        self, number: int, tasks: Sequence[AgentTask], tips: Sequence[Tip], advance: Advance
    ) -> ShardResult:
        """Sample the whole shard; an attempt that is stopped within it samples it again."""
        finished = itertools.count(1)
        attempts = [task for task in tasks for _ in range(self._team.rollouts)]
        trajectories = run_episodes(
            attempts,
            self._opened(),
            self._tools,
            self._agent,
            temperature=self._team.temperature,
            seed=self._team.seed,
            on_finished=lambda trajectory: advance(next(finished)),
            stopping=self._context.stopping,
        )
        if self._context.stopping.is_set():
            raise StageInterrupted("told to stop within a shard")
        groups: dict[str, list[Trajectory]] = {task.id: [] for task in tasks}
        for trajectory in trajectories:
            group = groups[trajectory.task_id]
            provenance = {**trajectory.provenance, "rollout": str(len(group))}
            group.append(trajectory.model_copy(update={"provenance": provenance}))
        return ShardResult(tuple(_outcome(task, groups[task.id]) for task in tasks), ())

    def close(self) -> None:
        """Free the engine."""
        if self._engine is not None:
            self._engine.close()

    def _opened(self) -> Engine:
        if self._engine is None:
            policy = self._context.inputs["policy"]
            self._engine = open_engine(self._context.section(EngineConfig), policy.path, policy.ref.digest)
        return self._engine


def _outcome(task: AgentTask, trajectories: Sequence[Trajectory]) -> TaskOutcome:
    choice = asyncio.run(choose(task.id, task.question, trajectories, None))
    return TaskOutcome(task_id=task.id, trajectories=tuple(trajectories), choice=choice)
