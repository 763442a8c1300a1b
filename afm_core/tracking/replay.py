"""From the spool to MLflow, as often as one likes: the same lines always give the same rows.

An attempt's MLflow run is found again by its tag `afm.attempt`; with a tag `afm.run` it is nested below that
run's parent, found by `afm.run` and `afm.parent`. MLflow's primary key (run, metric, step, time, value) makes
a repeated row a no-op, so the offset file beside a spool only saves work; it names the database it is true
for.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afm_core.config import ConfigError, home
from afm_core.tracking.client import TrackingError, database_identity, file_lock, open_client
from afm_core.tracking.spool import SpoolLine, read_spool, spool_files

if TYPE_CHECKING:
    from mlflow import MlflowClient

METRICS_A_BATCH = 1000
PARAMS_A_BATCH = 100
LINES_A_PASS = 5000
_STATUSES = ("FINISHED", "FAILED", "KILLED")


@dataclass
class ReplayReport:
    """What a replay did. `error` is empty if everything reached MLflow; otherwise the next replay goes on."""

    uri: str
    attempts: int = 0
    metrics: int = 0
    seconds: float = 0.0
    error: str = ""
    runs: dict[str, str] = field(default_factory=dict)
    """Attempt -> MLflow run id, for the attempts with new lines."""


def replay(directory: Path, uri: str, experiment: str, ended: str | None = None) -> ReplayReport:
    """Bring every new line of every spool to MLflow. Never raises; the report is also kept as `replay.json`.

    `ended` is the id of a run (tag `afm.run`) that is over: its MLflow runs that are still open are closed.
    """
    report = ReplayReport(uri)
    started = time.monotonic()
    if not directory.is_dir():
        return report
    try:
        with file_lock(directory / ".lock"):
            _replay_all(directory, uri, experiment, ended, report)
    except (ConfigError, TrackingError, OSError) as error:
        report.error = str(error)
    except Exception as error:  # noqa: BLE001 - tracking can never stop a run: the fault is recorded in the report
        report.error = f"{type(error).__name__}: {error}"
    report.seconds = round(time.monotonic() - started, 3)
    try:
        (directory / "replay.json").write_text(json.dumps(asdict(report), indent=1, sort_keys=True))
    except OSError as error:
        report.error = report.error or str(error)
    return report


def _replay_all(directory: Path, uri: str, experiment: str, ended: str | None, report: ReplayReport) -> None:
    pending = [
        (attempt, path)
        for attempt, path in spool_files(directory)
        if _offset(path, database_identity(uri)) < path.stat().st_size
    ]
    if not pending and ended is None:
        return
    target = _Target(open_client(uri), uri, experiment)
    identity = database_identity(uri)
    errors = []
    for attempt, path in pending:
        try:
            _replay_one(target, attempt, path, identity, report)
        except Exception as error:  # noqa: BLE001 - one attempt's fault must not keep the others from MLflow
            errors.append(f"{attempt}: {type(error).__name__}: {error}")
    if ended is not None:
        target.close_run(ended)
    report.error = "; ".join(errors)


def _replay_one(target: "_Target", attempt: str, path: Path, identity: str, report: ReplayReport) -> None:
    tags: dict[str, str] = {}
    for line in read_spool(path):
        tags |= line.content.get("tags", {})
    lines = read_spool(path, _offset(path, identity))
    run_id = ""
    while batch := _take(lines):
        if not run_id:
            run_id = target.run_of(attempt, tags, _start(path))
            report.attempts += 1
            report.runs[attempt] = run_id
        report.metrics += target.write(run_id, [line.content for line in batch])
        _save_offset(path, identity, batch[-1].end)


def _take(lines: Iterator[SpoolLine]) -> list[SpoolLine]:
    return [line for _, line in zip(range(LINES_A_PASS), lines, strict=False)]


def _start(path: Path) -> int:
    """Time of the spool's first timed line, in milliseconds."""
    times = (line.content["time"] for line in read_spool(path) if "time" in line.content)
    return int(next(times, time.time() * 1000))


def _offset_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.offset")


def _offset(path: Path, identity: str) -> int:
    try:
        record = json.loads(_offset_file(path).read_text())
        return int(record["offset"]) if record["database"] == identity else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _save_offset(path: Path, identity: str, offset: int) -> None:
    temporary = path.with_name(f"{path.name}.offset.new")
    temporary.write_text(json.dumps({"database": identity, "offset": offset}))
    temporary.replace(_offset_file(path))


class _Target:
    """One experiment of an MLflow server or file."""

    def __init__(self, client: "MlflowClient", uri: str, experiment: str) -> None:
        self._client = client
        self._experiment = self._experiment_id(uri, experiment)
        self._parents: dict[str, str] = {}

    def run_of(self, attempt: str, tags: dict[str, str], start: int) -> str:
        """The id of the attempt's run, found again or made."""
        found = self._find({"afm.attempt": attempt})
        if found:
            return found[0]
        tags = {**tags, "afm.attempt": attempt}
        if "afm.run" in tags:
            tags["mlflow.parentRunId"] = self._parent_of(tags["afm.run"], start)
        return self._make(tags.get("afm.stage", attempt), tags, start)

    def close_run(self, run: str) -> None:
        """End every MLflow run of a pipeline run that is still open."""
        for one in self._search({"afm.run": run}):
            if one.info.status == "RUNNING":
                self._client.set_terminated(one.info.run_id, "FINISHED")

    def write(self, run_id: str, lines: list[dict[str, Any]]) -> int:
        """Write the lines; returns the number of metric rows."""
        from mlflow.entities import Metric, Param

        metrics = [
            Metric(_name(name), value, line["time"], line["step"])
            for line in lines
            for name, value in line.get("metrics", {}).items()
        ]
        params = {_name(name): value[:6000] for line in lines for name, value in line.get("params", {}).items()}
        for start in range(0, len(metrics), METRICS_A_BATCH):
            self._client.log_batch(run_id, metrics=metrics[start : start + METRICS_A_BATCH])
        known = self._client.get_run(run_id).data.params if params else {}
        new = [Param(name, value) for name, value in params.items() if name not in known]
        for start in range(0, len(new), PARAMS_A_BATCH):
            self._client.log_batch(run_id, params=new[start : start + PARAMS_A_BATCH])
        for name, value in _tags(lines).items():
            self._client.set_tag(run_id, name, value)
        self._log_inputs(run_id, lines)
        for line in lines:
            if line.get("end") in _STATUSES:
                self._client.set_terminated(run_id, line["end"], line["time"])
        return len(metrics)

    def _log_inputs(self, run_id: str, lines: list[dict[str, Any]]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                Dataset(
                    name=f"{ref['kind']}-{ref['digest'][:12]}",
                    digest=ref["digest"][:32],
                    source_type="afm",
                    source=json.dumps(ref, sort_keys=True),
                ),
                [InputTag("mlflow.data.context", role)],
            )
            for line in lines
            for role, ref in line.get("inputs", {}).items()
        ]
        if inputs:
            self._client.log_inputs(run_id, inputs)

    def _experiment_id(self, uri: str, name: str) -> str:
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            # In a local file MLflow would put artifacts into the working directory.
            place = (home() / "mlruns").as_uri() if uri.startswith("sqlite:") else None
            try:
                return str(self._client.create_experiment(name, artifact_location=place))
            except MlflowException:
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

    def _parent_of(self, run: str, start: int) -> str:
        if run not in self._parents:
            tags = {"afm.run": run, "afm.parent": "true"}
            found = self._find(tags)
            self._parents[run] = found[0] if found else self._make(run, tags, start)
        return self._parents[run]

    def _make(self, name: str, tags: dict[str, str], start: int) -> str:
        run = self._client.create_run(self._experiment, start_time=start, tags=tags, run_name=name)
        return str(run.info.run_id)

    def _find(self, tags: dict[str, str]) -> list[str]:
        return [run.info.run_id for run in self._search(tags)]

    def _search(self, tags: dict[str, str]) -> Iterable[Any]:
        quoted = {name: value.replace("'", "''") for name, value in tags.items()}
        text = " and ".join(f"tags.`{name}` = '{value}'" for name, value in quoted.items())
        return self._client.search_runs([self._experiment], text, order_by=["attributes.start_time ASC"])


def _tags(lines: list[dict[str, Any]]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for line in lines:
        tags |= {_name(name): value[:5000] for name, value in line.get("tags", {}).items()}
        for role, ref in line.get("artifacts", {}).items():
            tags[_name(f"afm.artifact.{role}")] = ref["digest"]
            tags[_name(f"afm.artifact.{role}.uri")] = ref["uri"]
        for name, value in line.get("nonfinite", {}).items():
            tags[_name(f"afm.nonfinite.{name}")] = f"{value} at step {line['step']}"
    return tags


def _name(text: str) -> str:
    """A name that MLflow accepts for metrics, parameters and tags."""
    return re.sub(r"[^\w\-. /]", "_", text).strip("/")[:250] or "_"
