"""The stages `evaluate` and `register`.

`evaluate` runs the trials of its variant (see afm_core.evaluation.protocols) in shards of tasks; each finished shard is
sealed, so that a killed stage goes on where it stopped and ends with the same digest. `register` lets the gate decide
and, if the challenger won, makes it the champion of the registry.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from afm_core.config import AgentConfig, EngineConfig, EvaluationConfig, RegistryConfig, TeacherConfig
from afm_core.data import (
    AgentTask,
    NewTasks,
    Trajectory,
    documents_from_table,
    new_tasks,
    tasks_from_table,
    trajectories_from_table,
    trajectories_table,
)
from afm_core.engines import Engine
from afm_core.evaluation.gate import Decision, Outcome, Side, decide, defended
from afm_core.evaluation.gate_retrained import decide_retrained
from afm_core.evaluation.metrics import figures, summarise
from afm_core.evaluation.promotion import champion_pool, promote, record_rejection
from afm_core.evaluation.protocols import Protocol, Trial, trials_of, variant_of
from afm_core.evaluation.rows import EvaluationRow, row_of, rows_from_table, rows_table
from afm_core.evaluation.runner import Runner
from afm_core.evaluation.sampling import stratified_sample
from afm_core.evaluation.shards import Advance, Shard, run_shards
from afm_core.store import StageContext, StageResult, read_table, write_table
from afm_core.tools import build_tools


@dataclass(frozen=True)
class _TrialShard(Shard):
    """Some tasks of one trial."""

    trial: Trial


def evaluate(context: StageContext) -> StageResult:
    """Measure a model, or the baselines without one, on held-out tasks.

    Of a task set that grew, new and old tasks are sampled apart, each up to the limits: neither may hide the other.
    Writes rows.parquet, trajectories.parquet (without log-probs), summary.json, and sidecar/seconds.json.

    Raises:
        StageInterrupted: the stage was told to stop; finished shards are sealed.
        ValueError: an unknown variant, or a variant of a model without the input `model`.
    """
    evaluation = context.section(EvaluationConfig)
    tasks = tasks_from_table(read_table(context.inputs["tasks"].path / "tasks.parquet"))
    trials = trials_of(variant_of(context.spec.variant), evaluation, context.inputs)
    new = frozenset(grown.tasks if (grown := new_tasks(context.inputs["tasks"].path)) else ())
    shards = _shards(trials, tasks, evaluation, new)
    runner = _runner(context, evaluation)
    try:
        directories = run_shards(context, shards, partial(_run_shard, runner))
    finally:
        runner.close()
    return _write(context, trials, tasks, directories, new)


def register(context: StageContext) -> StageResult:
    """Decide on promotion, and carry it out. Writes decision.json.

    With the input `tasks` (a task set that grew) new and old gate tasks are judged apart, and a challenger that is not
    promoted is registered too, without the alias: nobody has to ask what became of the new tasks.
    A rerun after a kill completes what was begun: registering is idempotent (see afm_core.evaluation.promotion).
    """
    rules = context.section(RegistryConfig)
    inputs = context.inputs
    challenger, champion = (
        Side.from_rows(inputs[name].ref.digest, _gate_rows(inputs[f"{name}_evaluation"].path))
        for name in ("challenger", "champion")
    )
    grown = new_tasks(inputs["tasks"].path) if "tasks" in inputs else None
    if grown is not None:
        decision = decide_retrained(challenger, champion, rules, grown.tasks)
    else:
        decision = defended(decide(challenger, champion, rules), champion_pool(context))
    version = _carry_out(context, decision, grown)
    text = json.dumps(decision.to_json(), indent=2, sort_keys=True)
    (context.output / "decision.json").write_text(text + "\n", encoding="utf-8")
    winner = decision.challenger if decision.promoted else decision.champion
    return StageResult(
        metrics={
            "outcome": str(decision.outcome),
            "reason": decision.reason,
            "champion": winner.digest,
            "version": version,
            "challenger_accuracy": decision.challenger.accuracy,
            "champion_accuracy": decision.champion.accuracy,
            "difference": decision.paired.difference if decision.paired else None,
            "p_value": decision.paired.p_value if decision.paired else None,
        }
    )


def _carry_out(context: StageContext, decision: Decision, grown: NewTasks | None) -> str | None:
    """The registry's version of the challenger; None where it is not registered."""
    if decision.promoted:
        return promote(context, decision, grown)
    if grown is None or decision.outcome is Outcome.ALREADY_CHAMPION:
        return None
    return record_rejection(context, decision, grown)


def _gate_rows(directory: Path) -> list[EvaluationRow]:
    rows = rows_from_table(read_table(directory / "rows.parquet"))
    return [row for row in rows if row.protocol == Protocol.AGENT and row.split == "gate"]


def _runner(context: StageContext, evaluation: EvaluationConfig) -> Runner:
    documents = documents_from_table(read_table(context.inputs["corpus"].path / "documents.parquet"))
    agent = context.section(AgentConfig)
    demonstrations: list[Trajectory] = []
    if "demonstrations" in context.inputs:
        path = context.inputs["demonstrations"].path / "trajectories.parquet"
        demonstrations = trajectories_from_table(read_table(path))
    engine = context.section(EngineConfig)
    model = context.inputs.get("model")

    def open_engine() -> Engine:
        from afm_core.engines import open_engine as open_configured

        if model is None:
            raise ValueError(f"evaluate:{context.spec.variant} needs the input 'model'")
        return open_configured(engine, model.path, model.ref.digest)

    return Runner(
        tools=build_tools(agent, documents, context.scratch / "tools"),
        agent=agent,
        evaluation=evaluation,
        teacher=context.section(TeacherConfig),
        open_engine=open_engine,
        demonstrations=demonstrations,
        stopping=context.stopping,
    )


def _shards(
    trials: Sequence[Trial], tasks: Sequence[AgentTask], evaluation: EvaluationConfig, new: Collection[str]
) -> list[_TrialShard]:
    shards = []
    for trial in trials:
        split = [task for task in tasks if task.split is trial.split]
        parts = ([task for task in split if (task.id in new) is wanted] for wanted in (False, True))
        chosen = [task for part in parts for task in stratified_sample(part, trial.limit, evaluation.seed)]
        chosen.sort(key=lambda task: task.id)
        label = f"{trial.protocol} on {trial.split}"
        for number, start in enumerate(range(0, len(chosen), evaluation.shard_size)):
            name = f"shards/{trial.protocol}-{trial.split}-{number:04d}"
            shards.append(_TrialShard(name, label, chosen[start : start + evaluation.shard_size], trial))
    return shards


def _run_shard(runner: Runner, shard: _TrialShard, directory: Path, advance: Advance) -> None:
    """Fill a shard's directory with rows.parquet, trajectories.parquet and seconds.json."""
    started = time.monotonic()
    episodes = runner.run(shard.trial, shard.tasks, advance)
    by_id = {task.id: task for task in shard.tasks}
    rows = [row_of(by_id[one.task_id], one, shard.trial.protocol) for one in episodes]
    write_table(rows_table(rows), directory / "rows.parquet")
    write_table(trajectories_table(episodes), directory / "trajectories.parquet")
    seconds = round(time.monotonic() - started, 3)
    (directory / "seconds.json").write_text(json.dumps(seconds), encoding="utf-8")


def _write(
    context: StageContext,
    trials: Sequence[Trial],
    tasks: Sequence[AgentTask],
    directories: Mapping[str, Path],
    new: Collection[str],
) -> StageResult:
    rows = [row for path in directories.values() for row in rows_from_table(read_table(path / "rows.parquet"))]
    episodes = [
        one
        for path in directories.values()
        for one in trajectories_from_table(read_table(path / "trajectories.parquet"))
    ]
    entries = []
    for trial in trials:
        mine = [row for row in rows if (row.protocol, row.split) == (trial.protocol, trial.split)]
        population = sum(task.split is trial.split for task in tasks)
        if mine:
            entry = summarise(mine, population) | {"conditions": str(trial.conditions)}
            entries.append(entry | _by_age(mine, new) if new else entry)
    write_table(rows_table(rows), context.output / "rows.parquet")
    write_table(trajectories_table(episodes), context.output / "trajectories.parquet")
    _write_json(context.output / "summary.json", {"protocols": entries})
    seconds = {
        name.partition("/")[2]: json.loads((path / "seconds.json").read_text()) for name, path in directories.items()
    }
    _write_json(context.output / "sidecar" / "seconds.json", seconds)
    return StageResult(
        metrics={
            f"{entry['name']}/{entry['split']}/{figure}": entry[figure]
            for entry in entries
            for figure in ("accuracy", "accuracy_floor", "n", "scored")
        },
        rows={"rows.parquet": len(rows), "trajectories.parquet": len(episodes)},
    )


def _by_age(rows: Sequence[EvaluationRow], new: Collection[str]) -> dict[str, Any]:
    ages = {name: [row for row in rows if (row.task_id in new) is (name == "new")] for name in ("new", "old")}
    return {"by_age": {name: figures(group) for name, group in ages.items()}}


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
