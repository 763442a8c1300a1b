"""Reading rows that strangers hand in: one bad row is told and never costs the others.

`userfile` refuses a whole file at its first mistake, which is right for a file that a run is about to train on. Here a
file comes from a drop folder or a colleague: JSON lines in any state, or parquet. Every row becomes a task or a
`BadRow` with its number, field, reason and what it was.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from afm_core.config import ConfigError
from afm_core.data import AgentTask
from afm_core.taskcraft.userfile import RowError, decoded, parquet_rows, parse_row

_PARQUET = b"PAR1"
_SAMPLE_BYTES = 65536
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class NotTasks(ConfigError):
    """The file as a whole holds no tasks: it is neither JSON lines nor parquet, or it is empty."""


@dataclass(frozen=True)
class BadRow:
    """A row that is not accepted. `row` is its number (1 is the first), `field` is empty for the row as a whole."""

    row: int
    field: str
    reason: str
    original: Any

    def record(self) -> dict[str, Any]:
        """The line of a rejects file."""
        return {"row": self.row, "field": self.field, "reason": self.reason, "original": self.original}


@dataclass(frozen=True)
class _UnreadableRow(BadRow):
    """A line that is not even JSON."""


@dataclass(frozen=True)
class GoodRow:
    """A row that is a task. `split_given`: the row names its split itself; else the task's split is undecided."""

    row: int
    task: AgentTask
    split_given: bool
    original: Any


def read_rows(path: Path) -> list[GoodRow | BadRow]:
    """Every row of a JSON lines or parquet file, in its order. What the file is its content tells, not its name.

    Raises:
        NotTasks: it is neither (not one line is JSON), or it has no row. ConfigError: it cannot be read.
    """
    rows = [row if isinstance(row, BadRow) else _parsed(number, row) for number, row in _raw_rows(path)]
    if not rows:
        raise NotTasks(f"{path}: no tasks in it; write one JSON object a line, with question and answers")
    if all(isinstance(row, _UnreadableRow) for row in rows):
        reason = rows[0].reason if isinstance(rows[0], BadRow) else ""
        raise NotTasks(f"{path}: neither JSON lines nor parquet, for no line is JSON (row {rows[0].row}: {reason})")
    return rows


def generated_rows(tasks: Iterable[AgentTask]) -> list[GoodRow]:
    """Tasks of a generator as rows of a pool, which decides on their splits."""
    return [GoodRow(number, task, False, task.model_dump(mode="json")) for number, task in enumerate(tasks, start=1)]


def _parsed(number: int, row: Any) -> GoodRow | BadRow:
    place = f"row {number}"
    try:
        task = parse_row(decoded(row, place) if isinstance(row, dict) else row, place)
    except RowError as error:
        return BadRow(number, error.field, error.reason, row)
    return GoodRow(number, task, row.get("split") is not None, row)


def _raw_rows(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open("rb") as stream:
            sample = stream.read(_SAMPLE_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if sample.startswith(_PARQUET):
        yield from _parquet(path)
    elif b"\0" in sample:
        raise NotTasks(f"{path}: neither JSON lines nor parquet (it has zero bytes, as other binary files and UTF-16)")
    else:
        yield from _lines(path)


def _parquet(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        yield from parquet_rows(path)
    except ConfigError as error:
        raise NotTasks(str(error)) from error


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Lines that are not blank; only a line feed ends one, a byte order mark is skipped."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
            if content.strip():
                yield number, _json(number, content.rstrip(b"\r\n"))


def _json(number: int, line: bytes) -> Any:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8"
        return _UnreadableRow(number, "", reason, line.decode("utf-8", "backslashreplace"))
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # ValueError also for numbers of thousands of digits
        return _UnreadableRow(number, "", f"not valid JSON ({error})", text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
