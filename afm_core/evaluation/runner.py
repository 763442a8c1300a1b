"""Puts tasks to a policy, or to what stands in for one, under the conditions of a protocol; returns scored episodes.

Nothing here depends on which tasks were done before: a trial is cut into shards, each shard is run by itself, and a
shard has the same episodes whether the stage was killed in between or not (greedy decoding, deterministic scheduling).
The only thing that could differ is an episode's wall-clock budget, which is meant never to bind.
"""

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from afm_core.config import AgentConfig, EvaluationConfig, PromptStyle, TeacherConfig
from afm_core.data import (
    POLICY_FAILURES,
    SCORING_FAILURES,
    AgentTask,
    Segment,
    Status,
    Tag,
    Trajectory,
    Verdict,
)
from afm_core.engines import Engine
from afm_core.evaluation.baselines import always_search
from afm_core.evaluation.protocols import Protocol, Trial
from afm_core.evaluation.rows import row_id
from afm_core.rewards import score
from afm_core.rollout import Mode, run_episodes
from afm_core.teacher import few_shot_examples, teacher_ceiling
from afm_core.tools.protocol import Tool


@dataclass
class Runner:
    """Everything a trial needs. `open_engine` is called once, when the first episode of a model is due."""

    tools: Mapping[Tag, Tool]
    agent: AgentConfig
    evaluation: EvaluationConfig
    teacher: TeacherConfig
    open_engine: Callable[[], Engine] | None = None
    demonstrations: Sequence[Trajectory] = ()
    stopping: threading.Event = field(default_factory=threading.Event)
    _engine: Engine | None = None

    def run(
        self, trial: Trial, tasks: Sequence[AgentTask], advance: Callable[[float], None] = lambda done: None
    ) -> list[Trajectory]:
        """Scored episodes of the tasks in their order, ready to be stored; the teacher leaves unsolvable tasks out.

        advance: told how many of a policy's episodes are done.
        """
        by_id = {task.id: task for task in tasks}
        return [_stored(one, trial, by_id[one.task_id]) for one in self.episodes(trial.conditions, tasks, advance)]

    def close(self) -> None:
        """Free the engine, if one was opened."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def episodes(
        self, conditions: Protocol, tasks: Sequence[AgentTask], advance: Callable[[float], None] = lambda done: None
    ) -> list[Trajectory]:
        """Scored episodes under the conditions; a task given n times is sampled n times by a policy."""
        if conditions is Protocol.ALWAYS_SEARCH:
            return [scored(task, always_search(task, self.tools, self.agent.grammar)) for task in tasks]
        if conditions is Protocol.TEACHER:
            return teacher_ceiling(tasks, self.tools, self.teacher, self.agent)
        explained = conditions is Protocol.ZERO_SHOT  # examples explain themselves, and a long prompt only dilutes them
        agent = self.agent.model_copy(update={"prompt": PromptStyle.FULL}) if explained else self.agent
        examples = few_shot_examples(self.demonstrations, self.evaluation.few_shot)
        done = itertools.count(1)
        return run_episodes(
            tasks,
            self._opened(),
            self.tools,
            agent,
            mode=Mode.CLOSED_BOOK if conditions is Protocol.CLOSED_BOOK else Mode.AGENT,
            examples=examples if conditions is Protocol.FEW_SHOT else (),
            temperature=self.evaluation.temperature,
            seed=self.evaluation.seed,
            on_finished=lambda _: advance(next(done)),
            stopping=self.stopping,
        )

    def _opened(self) -> Engine:
        assert self.open_engine is not None, "a trial of a model needs an engine"
        if self._engine is None:
            self._engine = self.open_engine()
        return self._engine


def scored(task: AgentTask, trajectory: Trajectory) -> Trajectory:
    """The trajectory with the reward that counts: 0 for the policy's failures, None where scoring failed.

    A grader that cannot judge a given answer makes the status grader_error.
    """
    if trajectory.status in SCORING_FAILURES:
        return trajectory.model_copy(update={"reward": None})
    if trajectory.status in POLICY_FAILURES:
        return trajectory.model_copy(update={"reward": 0.0})
    result = score(task, trajectory.answer)
    verdict = Verdict(checker=str(task.verifier.kind), score=result.value, reason=result.reason)
    status = Status.GRADER_ERROR if result.value is None else trajectory.status
    return trajectory.model_copy(update={"reward": result.value, "verdicts": (verdict,), "status": status})


def _stored(trajectory: Trajectory, trial: Trial, task: AgentTask) -> Trajectory:
    """As it is kept: named by its row, without log-probs (they differ in the last bit between machines)."""
    segments = tuple(_without_logprobs(segment) for segment in trajectory.segments)
    return trajectory.model_copy(update={"id": row_id(trial.protocol, task.split, task.id), "segments": segments})


def _without_logprobs(segment: Segment) -> Segment:
    return segment if segment.logprobs is None else segment.model_copy(update={"logprobs": None})
