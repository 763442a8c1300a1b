"""Arrow schemas of documents, tasks and trajectories, with a version, and the way between rows and objects.

Tables are canonical: rows sorted by id, one schema, so that equal content gives equal bytes (see afm_core.store).
Free-form payloads (a verifier's payload, provenance) are stored as sorted JSON text.
"""

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from afm_core.data.documents import Document
from afm_core.data.tasks import AgentTask
from afm_core.data.trajectories import Trajectory

SCHEMA_VERSION = "1"

_STRING_LIST = pa.list_(pa.string())


def _schema(fields: list[tuple[str, pa.DataType]], kind: str) -> pa.Schema:
    return pa.schema(fields, metadata={"afm.schema": kind, "afm.schema_version": SCHEMA_VERSION})


DOCUMENT_SCHEMA = _schema(
    [(name, pa.string()) for name in ("id", "title", "text", "url", "licence", "component", "sha256")], "document"
)

TASK_SCHEMA = _schema(
    [
        ("id", pa.string()),
        ("question", pa.string()),
        ("answers", _STRING_LIST),
        ("verifier", pa.struct([("kind", pa.string()), ("payload", pa.string())])),
        ("domain", pa.string()),
        ("tools", _STRING_LIST),
        (
            "difficulty",
            pa.struct([("hops", pa.int32()), ("width", pa.int32()), ("solve_rate", pa.float64())]),
        ),
        (
            "solution",
            pa.list_(
                pa.struct(
                    [
                        ("operation", pa.string()),
                        ("relation", pa.string()),
                        ("subject", pa.string()),
                        ("value", pa.string()),
                        ("document_id", pa.string()),
                        ("inputs", pa.list_(pa.int32())),
                    ]
                )
            ),
        ),
        (
            "evidence",
            pa.list_(
                pa.struct(
                    [
                        ("document_id", pa.string()),
                        ("sha256", pa.string()),
                        ("start", pa.int64()),
                        ("end", pa.int64()),
                    ]
                )
            ),
        ),
        ("component", pa.string()),
        (
            "template",
            pa.struct([("composition", pa.string()), ("paraphrase", pa.string()), ("held_out", pa.bool_())]),
        ),
        ("split", pa.string()),
    ],
    "task",
)

TRAJECTORY_SCHEMA = _schema(
    [
        ("id", pa.string()),
        ("task_id", pa.string()),
        ("question", pa.string()),
        ("answer", pa.string()),
        ("grammar", pa.string()),
        ("source", pa.string()),
        (
            "segments",
            pa.list_(
                pa.struct(
                    [
                        ("origin", pa.string()),
                        ("text", pa.string()),
                        ("tag", pa.string()),
                        ("token_ids", pa.list_(pa.int32())),
                        ("logprobs", pa.list_(pa.float32())),
                        ("policy_version", pa.string()),
                        ("mistake", pa.bool_()),
                    ]
                )
            ),
        ),
        ("status", pa.string()),
        ("reward", pa.float64()),
        (
            "verdicts",
            pa.list_(pa.struct([("checker", pa.string()), ("score", pa.float64()), ("reason", pa.string())])),
        ),
        (
            "usage",
            pa.struct(
                [
                    (name, pa.int64())
                    for name in ("turns", "sampled_tokens", "prompt_tokens", "observation_tokens", "tool_calls")
                ]
            ),
        ),
        ("violations", _STRING_LIST),
        ("provenance", pa.string()),
    ],
    "trajectory",
)


def _encode(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def documents_table(documents: Iterable[Document]) -> pa.Table:
    """Documents as a canonical table, sorted by id."""
    rows = sorted((document.model_dump(mode="json") for document in documents), key=lambda row: row["id"])
    return pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA)


def documents_from_table(table: pa.Table) -> list[Document]:
    """Documents of a table; raises ValueError naming the row and field."""
    return [_build(Document, row, number) for number, row in enumerate(table.to_pylist())]


def tasks_table(tasks: Iterable[AgentTask]) -> pa.Table:
    """Tasks as a canonical table, sorted by id."""
    rows = sorted((task.model_dump(mode="json") for task in tasks), key=lambda row: row["id"])
    for row in rows:
        row["verifier"]["payload"] = _encode(row["verifier"]["payload"])
    return pa.Table.from_pylist(rows, schema=TASK_SCHEMA)


def tasks_from_table(table: pa.Table) -> list[AgentTask]:
    """Tasks of a table; raises ValueError naming the row and field."""
    rows = table.to_pylist()
    for row in rows:
        row["verifier"] = {**row["verifier"], "payload": json.loads(row["verifier"]["payload"])}
    return [_build(AgentTask, row, number) for number, row in enumerate(rows)]


def trajectories_table(trajectories: Iterable[Trajectory]) -> pa.Table:
    """Trajectories as a canonical table, sorted by id."""
    rows = sorted((trajectory.model_dump(mode="json") for trajectory in trajectories), key=lambda row: row["id"])
    for row in rows:
        row["provenance"] = _encode(row["provenance"])
    return pa.Table.from_pylist(rows, schema=TRAJECTORY_SCHEMA)


def trajectories_from_table(table: pa.Table) -> list[Trajectory]:
    """Trajectories of a table; raises ValueError naming the row and field."""
    rows = table.to_pylist()
    for row in rows:
        row["provenance"] = json.loads(row["provenance"])
    return [_build(Trajectory, row, number) for number, row in enumerate(rows)]


def _build(model: type[Any], row: dict[str, Any], number: int) -> Any:
    try:
        return model.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "row"
        raise ValueError(f"row {number}, field {field}: {first['msg']}") from error
