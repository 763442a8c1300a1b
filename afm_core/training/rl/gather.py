"""Gathering a step's groups: draw prompts, run their episodes, keep drawing until enough groups have a signal.

Synchronous: a round starts as many prompts as groups are missing and waits for all of them. Asynchronous: more prompts
are kept in flight than one step needs, the groups that are complete first are taken, whoever is slow is taken by a
later step, and a group with a token that is older than `rl.maximum_staleness` updates goes back to the prompts.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from afm_core.config import AgentConfig, RlConfig
from afm_core.data import AgentTask, Status, Trajectory
from afm_core.rollout.sampler import EpisodeRequest, Sampler
from afm_core.training.errors import TrainingFailed, TrainingStopped
from afm_core.training.rl.cursor import Cursor, PromptOrder
from afm_core.training.rl.eligibility import Masked, finite_reward
from afm_core.training.rl.groups import Assessed, Group, assess

_POLL_SECONDS = 0.5
_DEV = "dev/"


@dataclass
class Gathered:
    """A step's groups: those that train, those that had no signal, how many rounds and stale groups it took."""

    live: list[Assessed] = field(default_factory=list)
    dead: list[Assessed] = field(default_factory=list)
    rounds: int = 0
    stale: int = 0

    @property
    def trajectories(self) -> list[Trajectory]:
        """All episodes of the step, trained or not."""
        return [one for assessed in (*self.live, *self.dead) for one in assessed.group.trajectories]


@dataclass
class Rollouts:
    """The sampler with the prompts. `beat` is called whenever episodes ended; `should_stop` ends the wait.

    versions: digest of a policy that was loaded -> number of updates that made it.
    """

    sampler: Sampler
    order: PromptOrder
    cursor: Cursor
    tasks: Mapping[str, AgentTask]
    config: RlConfig
    agent: AgentConfig
    versions: dict[str, int] = field(default_factory=dict)
    beat: Callable[[str], None] = lambda message: None
    should_stop: Callable[[], bool] = lambda: False
    _open: dict[int, dict[int, Trajectory]] = field(default_factory=dict)
    _ready: list[Group] = field(default_factory=list)
    _evaluated: dict[str, Trajectory] = field(default_factory=dict)

    def evaluate(self, tasks: Sequence[AgentTask]) -> list[Trajectory]:
        """Greedy episodes of the tasks with the loaded policy, in their order."""
        self._evaluated.clear()
        keys = [f"{_DEV}{number}" for number in range(len(tasks))]
        self.sampler.start([EpisodeRequest(key, task, temperature=0.0) for key, task in zip(keys, tasks, strict=True)])
        while len(self._evaluated) < len(tasks):
            self._collect()
        return [self._evaluated[key] for key in keys]

    def gather(self, step: int) -> Gathered:
        """The groups that update number `step` (from 1) trains on; no live group: there was no signal.

        Raises:
            TrainingFailed: not one of a round's episodes could be scored. TrainingStopped: `should_stop` said so.
        """
        gathered = Gathered()
        while len(gathered.live) < self.config.prompts and gathered.rounds < self.config.sampling_rounds:
            missing = self.config.prompts - len(gathered.live)
            groups = self._next_groups(missing)
            _refuse_all_unscored(groups)
            for group in groups:
                self._sort(group, step, gathered)
            whole = -(-(len(gathered.live) + len(gathered.dead)) // self.config.prompts)
            gathered.rounds = whole if self._ahead else gathered.rounds + 1
        return gathered

    def start_ahead(self) -> None:
        """Asynchronous only: let episodes of later steps run while a step trains."""
        if self._ahead:
            self._start(self._ahead + self.config.prompts - self._in_flight)

    @property
    def _ahead(self) -> int:
        return self.config.maximum_staleness * self.config.prompts

    @property
    def _in_flight(self) -> int:
        return len(self._open) + len(self._ready)

    def _next_groups(self, missing: int) -> list[Group]:
        """Complete groups: all of a new round, or (asynchronous) those that are complete first."""
        if not self._ahead:
            self._start(missing)
            while self._open:
                self._collect()
            groups = self._ready
            self._ready = []
            return sorted(groups, key=lambda group: group.index)
        self.start_ahead()
        while not self._ready:
            self._collect()
        groups, self._ready = self._ready[:missing], self._ready[missing:]
        return groups

    def _sort(self, group: Group, step: int, gathered: Gathered) -> None:
        assessed = assess(group, self.config, self.agent, self.versions, step - 1)
        if not assessed.has_signal and Masked.STALE in assessed.masked:
            gathered.stale += 1
            self.cursor.put_back([group.index])
            return
        (gathered.live if assessed.has_signal else gathered.dead).append(assessed)
        self.cursor.consume(group.index, assessed.outcome)

    def _start(self, prompts: int) -> None:
        requests = []
        for position in self.cursor.take(max(prompts, 0)):
            task = self.tasks[self.order[position]]
            self._open[position] = {}
            requests += [
                EpisodeRequest(
                    f"{position}/{sample}",
                    task,
                    sample,
                    prompt_seed(self.config.seed, position),
                    self.config.temperature,
                )
                for sample in range(self.config.group_size)
            ]
        self.sampler.start(requests)

    def _collect(self) -> None:
        if self.should_stop():
            raise TrainingStopped("told to stop while episodes were sampled")
        for key, trajectory in self.sampler.collect(_POLL_SECONDS):
            if key.startswith(_DEV):
                self._evaluated[key] = trajectory
                self.beat(f"evaluating: {len(self._evaluated)} dev tasks done")
                continue
            position, sample = (int(part) for part in key.split("/"))
            members = self._open[position]
            members[sample] = trajectory
            if len(members) == self.config.group_size:
                del self._open[position]
                ordered = tuple(members[number] for number in sorted(members))
                self._ready.append(Group(position, self.tasks[self.order[position]], ordered))
            self.beat(f"sampling: {len(self._ready)} groups complete, {len(self._open)} in flight")


def prompt_seed(seed: int, position: int) -> int:
    """The sampling seed of a prompt's episodes: it follows from its position alone, so a step can be sampled again."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{position}".encode()).digest()[:8], "big") >> 1


def _refuse_all_unscored(groups: Sequence[Group]) -> None:
    """An outage must not look like a policy without signal."""
    trajectories = [one for group in groups for one in group.trajectories]
    if not trajectories or any(finite_reward(one) is not None for one in trajectories):
        return
    status, count = Counter(one.status for one in trajectories).most_common(1)[0]
    error = next((one.provenance.get("error", "") for one in trajectories if one.status is status), "")
    reasons = {Status.GRADER_ERROR: "the grader fails", Status.JUDGE_ERROR: "the judge fails"}
    raise TrainingFailed(
        f"none of {len(trajectories)} episodes could be scored, {count} of them ended as {status} "
        f"({error or reasons.get(status, 'no reason given')}): mend the tools or the scoring and run again"
    )
