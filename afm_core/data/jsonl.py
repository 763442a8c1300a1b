"""Reading JSON lines: the one reader of what users hand in."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from afm_core.config import ConfigError


def read_jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    """(row number, value) of every line that is not blank; row 1 is the file's first line.

    Only a line feed ends a row: a value's text may hold other separators (U+2028). A byte order mark is skipped.

    Raises:
        ConfigError: the file cannot be read as UTF-8, or a row is not valid JSON; names the file and the row.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                raise ConfigError(f"{path}, row {number}: not valid JSON ({error})") from error
