"""The user's own tasks: JSONL or parquet, one task a row.

A row needs `question` and `answers` (or `answer`); everything else of AgentTask may be given. An `id` is computed when
it is missing and checked when it is there. Rows without a `split` are dealt to the splits in the configured
proportions, whole components together (fewer than four components: all are training tasks). Errors name the file, the
row (1 is the first line) and the field.
"""

import difflib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from afm_core.config import ConfigError, SplitCounts
from afm_core.data import AgentTask, Document, Split, Verifier, read_jsonl, task_id
from afm_core.taskcraft.splits import plan_splits

_FIELDS = (*AgentTask.model_fields, "answer")


class RowError(ConfigError):
    """A row that is no task: `place` (file and row), `field` (empty: the row as a whole) and `reason`."""

    def __init__(self, place: str, field: str, reason: str) -> None:
        super().__init__(f"{place}, field {field}: {reason}" if field else f"{place}: {reason}")
        self.field = field
        self.reason = reason


def read_user_tasks(path: Path, counts: SplitCounts | None = None, seed: int = 0) -> list[AgentTask]:
    """All tasks of the file, sorted by id.

    Raises:
        ConfigError: an unreadable or empty file, a malformed row, an unknown field, a repeated question.
    """
    tasks: dict[str, AgentTask] = {}
    lines: dict[str, int] = {}
    undecided: list[str] = []
    for line, row in user_rows(path):
        task = parse_row(row, f"{path}, row {line}")
        if task.id in tasks:
            raise ConfigError(f"{path}, row {line}, field question: the same task as in row {lines[task.id]}")
        tasks[task.id], lines[task.id] = task, line
        if row.get("split") is None:
            undecided.append(task.id)
    if not tasks:
        raise ConfigError(f"{path}: no tasks in it; write one JSON object a line, with question and answers")
    sizes = Counter(_group(tasks[one]) for one in undecided)
    # A handful of tasks cannot be dealt to all splits: they stay what AgentTask says, training tasks.
    if len(sizes) >= len(Split):
        plan = plan_splits(sizes, counts or SplitCounts(), seed)
        for one in undecided:
            tasks[one] = tasks[one].model_copy(update={"split": plan[_group(tasks[one])]})
    return sorted(tasks.values(), key=lambda task: task.id)


def parse_row(row: object, place: str) -> AgentTask:
    """One task from plain values; `place` begins every error message.

    Raises:
        RowError: naming the place and the field.
    """
    if not isinstance(row, dict):
        raise RowError(place, "", f"expected an object with question and answers, got {type(row).__name__}")
    values = {key: value for key, value in row.items() if value is not None}
    for key in values:
        if key not in _FIELDS:
            near = difflib.get_close_matches(str(key), _FIELDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(_FIELDS)}"
            raise RowError(place, str(key), f"unknown{hint}")
    if "answer" in values:
        if "answers" in values:
            raise RowError(place, "answer", "give answer or answers, not both")
        values["answers"] = [values.pop("answer")]
    for key in ("question", "answers"):
        if not values.get(key):
            raise RowError(place, key, "missing or empty")
    if isinstance(values["answers"], str):
        raise RowError(place, "answers", "expected a list of texts, got a text; name the field answer")
    return _validated(values, place)


def check_evidence(tasks: Sequence[AgentTask], documents: Mapping[str, Document], path: Path) -> None:
    """Evidence that the user gives must be in the corpus, with the same text and a span inside it.

    Raises:
        ConfigError: naming the file, the task and the document.
    """
    for task in tasks:
        for evidence in task.evidence:
            document = documents.get(evidence.document_id)
            if document is None:
                problem = "is not in the corpus"
            elif document.sha256 != evidence.sha256:
                problem = "has another text than when the task was made (sha256 differs)"
            elif not evidence.start <= evidence.end <= len(document.text):
                problem = f"has {len(document.text)} characters; ({evidence.start}, {evidence.end}) is outside"
            else:
                continue
            raise ConfigError(f"{path}, task {task.id}, field evidence: document {evidence.document_id!r} {problem}")


def _validated(values: dict[str, Any], place: str) -> AgentTask:
    try:
        # Blank payloads and identifiers are filled in here, so that a row of two fields is a whole task.
        verifier = Verifier.model_validate(values.get("verifier", {}))
        question, answers = values["question"], tuple(values["answers"])
        if not isinstance(question, str) or not question.strip():
            raise RowError(place, "question", "expected a text that is not blank")
        if not all(isinstance(answer, str) for answer in answers):
            raise RowError(place, "answers", 'every answer must be a text, e.g. "42" and not 42')
        json.dumps(verifier.payload, allow_nan=False)
        expected = task_id(question, answers, verifier)
        task = AgentTask.model_validate({"id": expected, **values})
        task.model_dump_json()  # what cannot be written (half a surrogate pair, an object in a payload) is no task
        return task
    except RowError:
        raise
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "row"
        raise RowError(place, field, first["msg"].removeprefix("Value error, ")) from error
    except TypeError as error:
        raise RowError(place, "answers", f"expected a list of texts ({_first_line(error)})") from error
    except (ValueError, RecursionError) as error:
        raise RowError(place, "row", f"cannot be written as UTF-8 JSON ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def user_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """(row number, row) of a .jsonl or .parquet file in its order, payloads decoded, nothing checked.

    Raises:
        ConfigError: another ending, an unreadable file, a row that is not JSON.
    """
    if path.suffix == ".parquet":
        yield from ((number, decoded(row, f"{path}, row {number}")) for number, row in parquet_rows(path))
        return
    if path.suffix not in (".jsonl", ".json"):
        raise ConfigError(f"{path}: tasks come as .jsonl or .parquet, not {path.suffix or 'without an ending'!r}")
    yield from read_jsonl(path)


def parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number, row) of a parquet file, as it is. Raises ConfigError if it cannot be read."""
    from afm_core.store import read_table

    try:
        rows = read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the tasks of {path}: {error}") from error
    yield from enumerate(rows, start=1)


def decoded(row: dict[str, Any], place: str) -> dict[str, Any]:
    """A row whose verifier's payload is an object again: tables hold it as JSON text. Raises RowError."""
    verifier = row.get("verifier")
    if not isinstance(verifier, dict) or not isinstance(verifier.get("payload"), str):
        return row
    try:
        return {**row, "verifier": {**verifier, "payload": json.loads(verifier["payload"])}}
    except (ValueError, RecursionError) as error:
        raise RowError(place, "verifier.payload", "not valid JSON") from error


def _group(task: AgentTask) -> str:
    return task.component or task.id
