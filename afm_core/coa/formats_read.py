"""Reading files of trajectories: every mistake is a ConfigError that names file, row and field."""

import json
from pathlib import Path
from typing import Any

from afm_core.config import ConfigError
from afm_core.data import Trajectory, read_jsonl, trajectories_from_table

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row | Trajectory]:
    """Rows of a JSON list, of JSON lines or of a parquet file; trajectories if the parquet file is ours.

    Raises ConfigError for a file that cannot be read, is of another form, or has a row that is no object.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    rows = [row for _, row in read_jsonl(path)] if path.suffix == ".jsonl" else _json_list(path)
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ConfigError(f"{path}: row {index}: expected an object, found {type(row).__name__}")
    return list(rows)


def text_field(path: Path, index: int, row: Row, name: str) -> str:
    """A row's text field. Raises ConfigError if it is missing or no text."""
    if name not in row:
        raise ConfigError(f"{path}: row {index}: field {name!r} is missing; it has {', '.join(map(repr, row))}")
    value = row[name]
    if not isinstance(value, str):
        raise ConfigError(f"{path}: row {index}: field {name!r}: expected text, found {type(value).__name__}")
    return value


def first_text(row: Row, *names: str) -> str:
    """The first of these fields that holds text, else ''."""
    for name in names:
        value = row.get(name)
        if isinstance(value, str) and value.strip():
            return value
    return ""


def question_in(text: str) -> str:
    """The question at the end of a user turn (`...Question: q`), else the whole text."""
    return text.rpartition("Question:")[2].strip() if "Question:" in text else text.strip()


def _json_list(path: Path) -> list[Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}; expected a JSON list of objects") from error
    if isinstance(value, dict):
        lists = [entry for entry in value.values() if isinstance(entry, list)]
        value = lists[0] if len(lists) == 1 and set(value) & {"data", "rows", "trajectories"} else [value]
    if not isinstance(value, list):
        raise ConfigError(f"{path}: expected a JSON list of objects, found {type(value).__name__}")
    return value


def _parquet_rows(path: Path) -> list[Row | Trajectory]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            table: pa.Table = file.read()
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path}: not a readable parquet file: {error}") from error
    if "segments" not in table.column_names:
        return list(table.to_pylist())
    try:
        return list(trajectories_from_table(table))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from error
