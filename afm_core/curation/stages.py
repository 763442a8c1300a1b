"""The stage `curate`: demonstrations and tasks in, the training mix out, with a count for every reason."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from afm_core.config import ConfigError, CurationConfig
from afm_core.curation.dataset import facts_from_table, judge_parquet, judge_table
from afm_core.curation.leaks import LeakIndex
from afm_core.curation.mixing import Decision, decide
from afm_core.curation.reasons import DECISION_ORDER, Rejection, RejectReason
from afm_core.curation.rows import row_digest
from afm_core.data import AgentTask, Trajectory, tasks_from_table, trajectories_from_table, trajectories_table
from afm_core.store import StageContext, StageResult, read_table, write_table

REJECTED_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("id", "reason", "detail")],
    metadata={"afm.schema": "rejection", "afm.schema_version": "1"},
)


def curate(context: StageContext) -> StageResult:
    """Filter and mix the demonstrations of all inputs named `demonstrations` or `demonstrations.N`, and of `replay` or
    `replay.N`: old ones, of which only a share goes into the mix (`curation.replay_share`).

    Writes trajectories.parquet (kept rows and copies), rejected.parquet (id, reason, detail) and counts.json,
    in which `in` is always `kept` plus the sum of `rejected`.

    Raises:
        ConfigError: there is something to replay, and nothing new was kept beside it.
    """
    source, old = _gathered(context)
    tasks = tasks_from_table(read_table(context.inputs["tasks"].path / "tasks.parquet"))
    config = context.section(CurationConfig)
    context.progress(0, 2, "judging rows")
    facts = judge_parquet(source, _by_id(tasks), LeakIndex.build(tasks), config)
    context.progress(1, 2, "mixing")
    decision = decide(facts, config, old)
    if old and not decision.kept:
        raise ConfigError(
            f"no demonstration of a new task was kept (of {decision.counts()['in']} rows, old ones included): add "
            "training tasks with a solution path, or train from the base model with --set sft.start=base"
        )
    written = kept_trajectories(read_table(source), decision)
    write_table(trajectories_table(written), context.output / "trajectories.parquet")
    write_table(rejected_table(decision.rejected), context.output / "rejected.parquet")
    counts = decision.counts()
    write_counts(counts, context.output / "counts.json")
    return StageResult(
        metrics=metrics_of(decision),
        rows={"trajectories.parquet": len(written), "rejected.parquet": len(decision.rejected)},
    )


def _gathered(context: StageContext) -> tuple[Path, frozenset[str]]:
    """One file with the rows of all inputs, and the digests of those that are replayed."""
    files = {role: one.path / "trajectories.parquet" for role, one in context.inputs.items() if role != "tasks"}
    if list(files) == ["demonstrations"]:
        return files["demonstrations"], frozenset()
    tables = {role: read_table(file) for role, file in sorted(files.items())}
    path = context.scratch / "trajectories.parquet"
    write_table(pa.concat_tables(tables.values()), path)
    old = (row for role, table in tables.items() if role.startswith("replay") for row in table.to_pylist())
    return path, frozenset(map(row_digest, old))


def curate_rows(
    trajectories: Sequence[Trajectory], tasks: Sequence[AgentTask], config: CurationConfig
) -> tuple[list[Trajectory], Decision]:
    """The same curation in one process, without Ray: (kept trajectories and copies, the decision)."""
    table = trajectories_table(trajectories)
    facts = facts_from_table(judge_table(table, _by_id(tasks), LeakIndex.build(tasks), config))
    decision = decide(facts, config)
    return kept_trajectories(table, decision), decision


def kept_trajectories(table: pa.Table, decision: Decision) -> list[Trajectory]:
    """The kept rows of a table and their copies (id with `-copy1` and so on), sorted by id."""
    wanted = {row.digest for row in decision.kept}
    numbers: dict[str, int] = {}
    for number, row in enumerate(table.to_pylist()):
        digest = row_digest(row)
        if digest in wanted:
            numbers.setdefault(digest, number)
    kept = {digest: trajectories_from_table(table.slice(number, 1))[0] for digest, number in numbers.items()}
    copies = [copy_of(kept[digest], number + 1) for digest, count in decision.copies.items() for number in range(count)]
    assert len(kept) == len(decision.kept), "a kept row is missing from its table"
    return sorted([*kept.values(), *copies], key=lambda one: one.id)


def copy_of(trajectory: Trajectory, number: int) -> Trajectory:
    """A copy for up-sampling, told from the original by its id and its provenance."""
    provenance = {**trajectory.provenance, "copy_of": trajectory.id}
    return trajectory.model_copy(update={"id": f"{trajectory.id}-copy{number}", "provenance": provenance})


def rejected_table(rejected: Iterable[Rejection]) -> pa.Table:
    """Rejections as a table, in their order."""
    rows = [{"id": one.id, "reason": one.reason.value, "detail": one.detail} for one in rejected]
    return pa.Table.from_pylist(rows, schema=REJECTED_SCHEMA)


def write_counts(counts: Mapping[str, object], path: Path) -> None:
    """counts.json, with the order in which reasons are decided."""
    content: dict[str, Any] = {**counts, "order": [reason.value for reason in DECISION_ORDER]}
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def metrics_of(decision: Decision) -> dict[str, int | float]:
    """Flat figures for the stage's metrics."""
    counts = decision.counts()
    reasons = [rejection.reason for rejection in decision.rejected]
    flat = {name: value for name, value in counts.items() if isinstance(value, int)}
    return {**flat, **{f"rejected/{reason}": reasons.count(reason) for reason in RejectReason}}


def _by_id(tasks: Iterable[AgentTask]) -> dict[str, AgentTask]:
    return {task.id: task for task in tasks}
