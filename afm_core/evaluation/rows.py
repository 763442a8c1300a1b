"""EvaluationRow: one task under one protocol, and its Arrow table. Rows are what accuracy is computed from.

Rows are digested, so they hold nothing that differs between two equal runs: seconds stand in the artifact's
sidecar.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

import pyarrow as pa

from afm_core.data import AgentTask, Status, Trajectory, is_guessable
from afm_core.evaluation.protocols import Protocol

CORRECT = 1.0
"""The reward of a wholly correct answer; a partial credit below it is not correct."""

ROW_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("task_id", pa.string()),
        ("protocol", pa.string()),
        ("split", pa.string()),
        ("hops", pa.int32()),
        ("composition", pa.string()),
        ("held_out", pa.bool_()),
        ("guessable", pa.bool_()),
        ("status", pa.string()),
        ("answer", pa.string()),
        ("reward", pa.float64()),
        ("turns", pa.int64()),
        ("sampled_tokens", pa.int64()),
        ("prompt_tokens", pa.int64()),
        ("observation_tokens", pa.int64()),
        ("tool_calls", pa.int64()),
        ("violations", pa.list_(pa.string())),
    ],
    metadata={"afm.schema": "evaluation_row", "afm.schema_version": "1"},
)


@dataclass(frozen=True)
class EvaluationRow:
    """One task under one protocol. `reward` None: it could not be scored (never the policy's fault)."""

    id: str
    task_id: str
    protocol: str
    split: str
    hops: int
    status: Status
    reward: float | None
    answer: str | None = None
    composition: str = ""
    held_out: bool = False
    guessable: bool = False
    turns: int = 0
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    observation_tokens: int = 0
    tool_calls: int = 0
    violations: tuple[str, ...] = ()

    @property
    def scored(self) -> bool:
        """Whether there is a verdict at all."""
        return self.reward is not None

    @property
    def correct(self) -> bool:
        """Whether the verdict is full marks."""
        return self.reward is not None and self.reward >= CORRECT


def row_id(protocol: Protocol | str, split: str, task: str) -> str:
    """The row's (and its trajectory's) id: unique in an evaluation, equal for every model."""
    return f"{protocol}-{split}-{task}"


def row_of(task: AgentTask, trajectory: Trajectory, protocol: Protocol | str) -> EvaluationRow:
    """The row of a scored trajectory."""
    return EvaluationRow(
        id=row_id(protocol, task.split, task.id),
        task_id=task.id,
        protocol=str(protocol),
        split=str(task.split),
        hops=task.difficulty.hops,
        composition=task.template.composition if task.template else "",
        held_out=task.template.held_out if task.template else False,
        guessable=is_guessable(task),
        status=trajectory.status,
        answer=trajectory.answer,
        reward=trajectory.reward,
        violations=trajectory.violations,
        **trajectory.usage.model_dump(),
    )


def rows_table(rows: Iterable[EvaluationRow]) -> pa.Table:
    """Rows as a canonical table, sorted by id."""
    ordered = sorted((asdict(row) for row in rows), key=lambda row: row["id"])
    return pa.Table.from_pylist(ordered, schema=ROW_SCHEMA)


def rows_from_table(table: pa.Table) -> list[EvaluationRow]:
    """Rows of a table; raises ValueError for an unknown status or a missing column."""
    names = {one.name for one in fields(EvaluationRow)}
    missing = names - set(table.column_names)
    if missing:
        raise ValueError(f"not a table of evaluation rows: no column {sorted(missing)[0]!r}")
    rows = []
    for values in table.to_pylist():
        known = {name: values[name] for name in names}
        known["status"] = Status(known["status"])
        known["violations"] = tuple(known["violations"] or ())
        rows.append(EvaluationRow(**known))
    return rows
