"""The record of a run: what it was asked, what each stage did, how it ended. One folder a run below `$AFM_HOME/runs`.

Records are for people and for `afm runs`; nothing in the pipeline depends on them (the store is the only truth).
"""

import os
import secrets
import time
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from afm_core.config import ConfigError
from afm_core.store import ArtifactRef, Process, gone


class RunStatus(StrEnum):
    """How a run stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DIED = "died"
    """Its process is gone without a word. Nobody writes this: a reader sees it (see `RunDirectory.load`)."""


class StageRecord(BaseModel):
    """One stage of a run. `seconds` is wall-clock time here, near 0 when cached, without those it waited for its turn
    (`queued`); `timings` as in Finished."""

    model_config = ConfigDict(extra="forbid")

    name: str
    cached: bool
    seconds: float
    artifact: ArtifactRef
    metrics: dict[str, Any] = Field(default_factory=dict)
    key: str = ""
    generation: int = 1
    queued: float = 0.0
    timings: dict[str, float] = Field(default_factory=dict)


class StageProgress(BaseModel):
    """A stage at work: how far, for how many seconds so far, and how many it still takes (None: not known yet)."""

    model_config = ConfigDict(extra="forbid")

    done: int = 0
    total: int = 0
    message: str = ""
    seconds: float = 0.0
    seconds_left: float | None = None


class RunLinks(BaseModel):
    """Where else a run is seen: its Prefect flow run, its MLflow run, and the Ray job of each stage (label -> id).

    `mlflow_file`: the database of its metrics where there is no MLflow server.
    """

    model_config = ConfigDict(extra="forbid")

    flow_run: str | None = None
    mlflow_run: str | None = None
    mlflow_file: str | None = None
    ray_dashboard: str | None = None
    ray_jobs: dict[str, str] = Field(default_factory=dict)


class RunRecord(BaseModel):
    """A run. `models` and `champion` are filled at its end; the JSON that scripts rely on is `run_json`.

    `process` is the one that runs it; `progress` has the stages at work, by label; `pool` is the version of a task
    pool that is trained for.
    """

    model_config = ConfigDict(extra="forbid")

    run_id: str
    profile: str
    status: RunStatus = RunStatus.RUNNING
    started: str
    ended: str | None = None
    seconds: float | None = None
    pid: int
    process: Process | None = None
    links: RunLinks = Field(default_factory=RunLinks)
    progress: dict[str, StageProgress] = Field(default_factory=dict)
    parameters: dict[str, Any] = Field(default_factory=dict)
    config: dict[str, Any] = Field(default_factory=dict)
    stages: list[StageRecord] = Field(default_factory=list)
    models: dict[str, Any] = Field(default_factory=dict)
    champion: dict[str, Any] | None = None
    pool: dict[str, Any] | None = None
    report: str | None = None
    error: str | None = None
    peak_memory_bytes: int = 0
    memory_series: list[tuple[float, int]] = Field(default_factory=list)


_PRIVATE = {"config", "memory_series", "pid", "process", "progress", "parameters"}


def run_json(record: RunRecord) -> dict[str, Any]:
    """The stable JSON form of a run (what `afm run --json` prints, also of one that failed)."""
    fields = record.model_dump(mode="json", exclude=_PRIVATE)
    fields["stages"] = [
        {name: stage[name] for name in ("name", "cached", "seconds", "artifact", "metrics")}
        for stage in fields["stages"]
    ]
    return fields


def new_run_id() -> str:
    """Sortable and unique: UTC time and four random hex digits."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def now() -> str:
    """UTC time in ISO format, seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class RunDirectory:
    """The folder of one run: record, resolved configuration, specs, logs, metric spool, report."""

    def __init__(self, home: Path, run_id: str) -> None:
        self.path = home / "runs" / run_id
        self.run_id = run_id
        self.logs = self.path / "logs"
        self.specs = self.path / "specs"
        self.report = self.path / "report.html"

    def create(self) -> "RunDirectory":
        """Make the folders. Raises ConfigError if they cannot be written."""
        try:
            for folder in (self.path, self.logs, self.specs):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot write {self.path}: {error.strerror}; set AFM_HOME to a writable folder"
            ) from error
        return self

    def log_of(self, label: str) -> Path:
        """Where the log of a stage goes."""
        return self.logs / f"{label.replace(':', '-')}.log"

    def log_tail(self, label: str, size: int = 20_000) -> list[str]:
        """The last lines of a stage's log, from at most `size` bytes; none without a log."""
        try:
            with self.log_of(label).open("rb") as stream:
                stream.seek(max(0, stream.seek(0, os.SEEK_END) - size))
                return stream.read().decode("utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []

    def save(self, record: RunRecord) -> None:
        """Replace the record atomically."""
        temporary = self.path / f".run.json.{os.getpid()}.{time.monotonic_ns()}"
        temporary.write_text(record.model_dump_json(indent=2), encoding="utf-8")
        temporary.replace(self.path / "run.json")

    def load(self) -> RunRecord:
        """The saved record; a run whose process is seen to be gone has died. A process on another host cannot be seen.

        Raises ConfigError if there is none or it is damaged.
        """
        try:
            record = RunRecord.model_validate_json((self.path / "run.json").read_text(encoding="utf-8"))
            if record.status is RunStatus.RUNNING and record.process is not None and gone(record.process):
                record.status = RunStatus.DIED
            return record
        except FileNotFoundError:
            raise ConfigError(f"no run {self.run_id!r}; `afm runs ls` lists them") from None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "record"
            raise ConfigError(f"the record {self.path / 'run.json'} is damaged: {place}: {first['msg']}") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"the record {self.path / 'run.json'} is damaged: {error}") from error


def list_runs(home: Path) -> list[RunRecord]:
    """Every readable record, newest first; damaged ones are left out."""
    records = []
    for path in sorted((home / "runs").glob("*/run.json"), reverse=True):
        try:
            records.append(RunDirectory(home, path.parent.name).load())
        except ConfigError:
            continue
    return records


def find_run(home: Path, name: str) -> RunDirectory:
    """A run by id, unique prefix, or `last`. Raises ConfigError."""
    names = sorted(path.parent.name for path in (home / "runs").glob("*/run.json"))
    if name == "last" and names:
        return RunDirectory(home, names[-1])
    found = [name] if name in names else [one for one in names if name and one.startswith(name)]
    if len(found) != 1:
        raise ConfigError(f"{'no' if not found else 'more than one'} run {name!r}; `afm runs ls` lists them")
    return RunDirectory(home, found[0])
