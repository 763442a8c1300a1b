"""Metrics on disk first: one file of JSON lines an attempt, each line with its own time and step.

Training must never wait for, or die of, a tracking server (users lost day-long runs to a full database pool).
So a stage only appends here, and `replay` brings the lines to MLflow later, again and again if need be, with
the same result. A line is one write to a file opened for appending: several processes may share an attempt's
spool, and a kill leaves at most one torn line, which the reader skips.

Line types: {"metrics", "step", "time"}, {"nonfinite", ...}, {"tags"}, {"params"}, {"inputs"}, {"artifacts"},
{"end"}.
"""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from afm_core.store import ArtifactRef

SUFFIX = ".jsonl"


class MetricSpool:
    """The spool of one attempt. No method raises or blocks on a network; `failures` counts what could not be
    written.

    Args:
        directory: the spool directory (made if missing), shared by all attempts.
        attempt: the attempt's id; becomes the MLflow run's tag `afm.attempt`.
        tags: further tags; `afm.run` nests the MLflow run under that run's parent.
    """

    def __init__(self, directory: Path, attempt: str, tags: Mapping[str, str] | None = None) -> None:
        self.path = directory / f"{quote(attempt, safe='')}{SUFFIX}"
        self.failures = 0
        self.last_error = ""
        if tags:
            self.log_tags(tags)

    def log(self, metrics: Mapping[str, float], step: int = 0, timestamp: int | None = None) -> None:
        """Append metrics of one step; `timestamp` in milliseconds, default now. NaN and infinities are set
        apart.
        """
        finite, strange = _split(metrics)
        moment = int(time.time() * 1000) if timestamp is None else timestamp
        if finite:
            self._append({"metrics": finite, "step": int(step), "time": moment})
        if strange:
            self._append({"nonfinite": strange, "step": int(step), "time": moment})

    def log_tags(self, tags: Mapping[str, str]) -> None:
        """Append tags of the MLflow run; a later value of a tag wins."""
        self._append({"tags": {str(name): str(value) for name, value in tags.items()}})

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Append parameters; nested mappings become dotted names. MLflow keeps a parameter's first value."""
        self._append({"params": dict(_flat(params))})

    def log_inputs(self, inputs: Mapping[str, ArtifactRef]) -> None:
        """Append the datasets and models that were read: role -> reference."""
        self._append({"inputs": {role: ref.model_dump(mode="json") for role, ref in inputs.items()}})

    def log_artifacts(self, artifacts: Mapping[str, ArtifactRef]) -> None:
        """Append what was made: role -> reference (they become tags: MLflow gets URI and digest, never
        weights).
        """
        self._append({"artifacts": {role: ref.model_dump(mode="json") for role, ref in artifacts.items()}})

    def end(self, status: str = "FINISHED") -> None:
        """Append the end of the attempt: FINISHED, FAILED or KILLED."""
        self._append({"end": status, "time": int(time.time() * 1000)})

    def _append(self, line: dict[str, Any]) -> None:
        try:
            data = json.dumps(line, sort_keys=True).encode() + b"\n"
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(descriptor, (b"\n" if _torn(descriptor) else b"") + data)
            finally:
                os.close(descriptor)
        except (OSError, TypeError, ValueError) as error:
            self.failures += 1
            self.last_error = f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class SpoolLine:
    """One readable line and the offset in bytes after it."""

    content: dict[str, Any]
    end: int


def spool_files(directory: Path) -> list[tuple[str, Path]]:
    """(attempt, file) of every spool, sorted."""
    return sorted((unquote(path.name[: -len(SUFFIX)]), path) for path in directory.glob(f"*{SUFFIX}"))


def read_spool(path: Path, offset: int = 0) -> Iterator[SpoolLine]:
    """Whole lines from a byte offset on; torn and unreadable lines are skipped, an unfinished last one is
    left.
    """
    with path.open("rb") as stream:
        stream.seek(offset)
        for data in stream:
            if not data.endswith(b"\n"):
                return
            offset += len(data)
            try:
                content = json.loads(data)
            except ValueError:
                content = {}
            yield SpoolLine(content if isinstance(content, dict) else {}, offset)


def _split(metrics: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, str]]:
    finite: dict[str, float] = {}
    strange: dict[str, str] = {}
    for name, value in metrics.items():
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            strange[str(name)] = f"not a number: {type(value).__name__}"
            continue
        if math.isfinite(number):
            finite[str(name)] = number
        else:
            strange[str(name)] = str(number)
    return finite, strange


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)


def _torn(descriptor: int) -> bool:
    """Whether the file ends in the middle of a line (its writer was killed)."""
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
