"""Benchmark files as questions that no training row may ask."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from afm_core.config import ConfigError
from afm_core.taskcraft.userfile import user_rows

QUESTION_FIELDS = ("question", "problem")


def benchmark_questions(files: Iterable[str]) -> dict[str, str]:
    """Question -> name of the benchmark, of JSONL or parquet files whose rows have one of QUESTION_FIELDS.

    A whole prompt with the question somewhere in it is refused: it would compare equal to nothing and protect nobody.

    Raises:
        ConfigError: a file that cannot be read, or a row without a question.
    """
    found: dict[str, str] = {}
    for name in files:
        path = Path(name).expanduser()
        for number, row in user_rows(path):
            question = _question(row)
            if question is None:
                fields = " or ".join(QUESTION_FIELDS)
                raise ConfigError(
                    f"pool.benchmarks: {path}, row {number}: no text in the field {fields}; write the bare questions "
                    'as JSON lines, {"question": "..."}'
                )
            found[question] = path.stem
    return found


def _question(row: Any) -> str | None:
    values = (row.get(name) for name in QUESTION_FIELDS) if isinstance(row, dict) else ()
    return next((value for value in values if isinstance(value, str) and value.strip()), None)
