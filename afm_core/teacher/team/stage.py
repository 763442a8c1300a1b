"""The stage `rollout`: corpus and tasks in, the team's demonstrations of the train tasks out.

Work is done in shards of tasks. Every finished rollout is sealed at once, every finished shard takes its rollouts'
place; an attempt that is killed at any instant is continued by the next one, which plays no finished rollout again.
Only the train split is demonstrated, with tools that see no document of a held-out component.

Files: trajectories.parquet (what goes on to curation), rollouts.parquet (all of them), and the record (tables.py).
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Protocol

from afm_core.coa import grammar_for
from afm_core.config import AgentConfig, ConfigError, EndpointConfig, TeamConfig
from afm_core.data import (
    ADDED_FILE,
    SCORING_FAILURES,
    AgentTask,
    Document,
    Split,
    Tag,
    Trajectory,
    documents_from_table,
    tasks_from_table,
    trajectories_table,
)
from afm_core.engines.backbone import BackbonePool
from afm_core.engines.backbone.ray_servers import served
from afm_core.store import StageContext, StageInterrupted, StageResult, read_table, write_table
from afm_core.teacher.demonstrations import training_components
from afm_core.teacher.team.figures import outcome_figures, tip_figures
from afm_core.teacher.team.record import TeamRecording
from afm_core.teacher.team.shard import Shard, ShardResult, TaskOutcome, kept, play_shard
from afm_core.teacher.team.tables import choices_table, recordings_table, tips_table, write_shard
from afm_core.teacher.team.team import Setting
from afm_core.teacher.team.tips import Tip
from afm_core.tools import build_tools
from afm_core.tools.protocol import Tool

OUTCOMES, TIPS = "outcomes.jsonl", "tips.jsonl"


Advance = Callable[[int], None]
"""Tell how many rollouts of a shard are done; shown as progress, nothing else."""


class Teacher(Protocol):
    """What demonstrates a shard of tasks."""

    def demonstrate(
        self, number: int, tasks: Sequence[AgentTask], tips: Sequence[Tip], advance: Advance
    ) -> ShardResult:
        """All rollouts of the shard's tasks. Raises StageInterrupted when told to stop."""
        ...

    def close(self) -> None:
        """Free what was opened."""
        ...


Opener = Callable[[StageContext, TeamConfig, AgentConfig, Mapping[Tag, Tool]], Teacher]


def rollout(context: StageContext) -> StageResult:
    """Demonstrate every train task (with the input `additions`, a version of a task pool, those that it added).

    Raises:
        ConfigError: no endpoint is configured, or none accepts its key. BackboneGone: the endpoints are away.
        ServerFailed: a server of `team.servers` did not start.
        StageInterrupted: told to stop; what was finished is sealed.
    """
    team = context.section(TeamConfig)
    if not team.served:
        raise ConfigError("the team needs a language model: set team.endpoints (docs/teacher.md shows how)")
    _check_profile(context.section(AgentConfig))
    with served(team.servers) as started:
        return run_teacher(context, partial(TeamTeacher, [*team.endpoints, *started]))


def _check_profile(agent: AgentConfig) -> None:
    """Raise ConfigError for a tool that the grammar has no place for: every call of it would be paid for and lost."""
    grammar = grammar_for(agent.grammar)
    foreign = [tag for tag in agent.tools if tag not in grammar.tools]
    if foreign:
        raise ConfigError(
            f"agent.tools: <{foreign[0]}> does not belong to the profile {grammar.name}; it has "
            f"{', '.join(grammar.tools)}"
        )


def run_teacher(context: StageContext, open_teacher: Opener) -> StageResult:
    """Demonstrate the stage's tasks with a teacher, shard by shard, and write the artifact."""
    documents, tasks, known = _inputs(context)
    agent, team = context.section(AgentConfig), context.section(TeamConfig)
    tools = build_tools(agent, documents, context.scratch / "tools", training_components(documents, known))
    with closing(open_teacher(context, team, agent, tools)) as teacher:
        shards = _demonstrate(context, teacher, tasks, team)
    return _write(context, team, shards, len(tasks))


def _inputs(context: StageContext) -> tuple[list[Document], list[AgentTask], list[AgentTask]]:
    """(documents, the tasks to demonstrate by id, all tasks whose held-out components are hidden)."""
    documents = documents_from_table(read_table(context.inputs["corpus"].path / "documents.parquet"))
    tasks = tasks_from_table(read_table(context.inputs["tasks"].path / "tasks.parquet"))
    taught = tasks
    if "additions" in context.inputs:
        pool = context.inputs["additions"].path
        tasks = [*tasks, *tasks_from_table(read_table(pool / "tasks.parquet"))]
        taught = tasks_from_table(read_table(pool / ADDED_FILE))
    train = {task.id: task for task in taught if task.split == Split.TRAIN}
    return documents, [train[name] for name in sorted(train)], tasks


def _demonstrate(context: StageContext, teacher: Teacher, tasks: Sequence[AgentTask], team: TeamConfig) -> list[Path]:
    """The directory of every shard, sealed now or before."""
    sealed = context.sealed("shards/")
    directories: list[Path] = []
    tips: list[Tip] = []
    size, total = team.shard_tasks, len(tasks) * team.rollouts
    for number, start in enumerate(range(0, len(tasks), size)):
        advance = partial(_advance, context, start * team.rollouts, total)
        name = f"shards/{number:05d}"
        directory = sealed.get(name)
        if directory is None:
            if context.stopping.is_set():
                raise StageInterrupted("told to stop between two shards")
            result = teacher.demonstrate(number, tasks[start : start + size], tips, advance)
            directory = _store(result, context.scratch / name)
            context.seal(name, directory)
            for rollout in context.sealed(f"rollouts/{number:05d}/"):
                context.unseal(rollout)
        tips += [Tip.model_validate_json(line) for line in _lines(directory / TIPS)]
        directories.append(directory)
        advance(min(size, len(tasks) - start) * team.rollouts)
    return directories


def _advance(context: StageContext, before: int, total: int, rollouts: int) -> None:
    context.progress(before + rollouts, total, "rollouts")


class TeamTeacher:
    """The team: each shard on an event loop of its own, each finished rollout sealed."""

    def __init__(
        self,
        endpoints: Sequence[EndpointConfig],
        context: StageContext,
        team: TeamConfig,
        agent: AgentConfig,
        tools: Mapping[Tag, Tool],
    ) -> None:
        self._endpoints, self._context = endpoints, context
        self._team, self._agent, self._tools = team, agent, tools

    def demonstrate(
        self, number: int, tasks: Sequence[AgentTask], tips: Sequence[Tip], advance: Advance
    ) -> ShardResult:
        """Play what is missing of the shard, and again what an infrastructure failure spoiled before."""
        prefix = f"rollouts/{number:05d}/"
        sealed = (file.read_bytes() for file in self._context.sealed(prefix).values())
        recordings = [TeamRecording.model_validate_json(content) for content in sealed]
        done = {one.id: one for one in recordings if one.status not in SCORING_FAILURES}
        return asyncio.run(self._play(Shard(tasks, tips, done), prefix, advance))

    def close(self) -> None:
        """Nothing stays open between shards."""

    async def _play(self, shard: Shard, prefix: str, advance: Advance) -> ShardResult:
        finished = itertools.count(len(shard.done) + 1)

        def keep(recording: TeamRecording) -> None:
            file = self._context.scratch / "rollout.json"
            file.write_text(recording.model_dump_json(), encoding="utf-8")
            self._context.seal(f"{prefix}{recording.id}", file)
            advance(next(finished))

        async with BackbonePool(self._endpoints) as backbone:
            setting = Setting(backbone, self._team, self._agent, self._tools)
            return await play_shard(shard, setting, keep, self._context.stopping)


def _store(result: ShardResult, directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name, rows in ((OUTCOMES, result.outcomes), (TIPS, result.tips)):
        text = "".join(f"{row.model_dump_json()}\n" for row in rows)
        (directory / name).write_text(text, encoding="utf-8")
    return directory


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as lines:
        yield from lines


def _write(context: StageContext, team: TeamConfig, shards: Sequence[Path], tasks: int) -> StageResult:
    """Write the artifact, one shard's records in memory at a time."""
    everything: list[Trajectory] = []
    chosen: list[Trajectory] = []
    bare: list[TeamRecording] = []
    choices, tips, rows = [], [], {}
    counts: Counter[str] = Counter(tasks=tasks)
    for number, directory in enumerate(shards):
        outcomes = [TaskOutcome.model_validate_json(line) for line in _lines(directory / OUTCOMES)]
        recordings = [one for outcome in outcomes for one in outcome.recordings]
        if recordings:
            rows[f"events/{number:05d}.parquet"] = write_shard(context.output, number, recordings)
        for outcome in outcomes:
            everything += outcome.trajectories
            chosen += kept(outcome, team.keep)
            choices.append(outcome.choice)
            counts.update(outcome_figures(outcome))
        bare += [one.model_copy(update={"events": ()}) for one in recordings]
        tips += [Tip.model_validate_json(line) for line in _lines(directory / TIPS)]
    counts.update(tip_figures(tips))
    tables = {
        "trajectories": trajectories_table(chosen),
        "rollouts": trajectories_table(everything),
        "recordings": recordings_table(bare),
        "choices": choices_table(choices),
        "tips": tips_table(tips),
    }
    for name, table in tables.items():
        rows[f"{name}.parquet"] = write_table(table, context.output / f"{name}.parquet")
    return StageResult(metrics=dict(sorted(counts.items())), rows=rows)
