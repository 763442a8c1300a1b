"""Replay against a real MLflow: same spool, same rows, however often and from wherever it is continued."""

import json
import math
import threading
from pathlib import Path

import pytest

from afm_core.config import TrackingConfig
from afm_core.store import ArtifactKind, ArtifactRef
from afm_core.tracking import MetricSpool, Replayer, replay, tracking_uri

pytestmark = pytest.mark.integration
DATA = ArtifactRef(kind=ArtifactKind.TASKS, digest="d" * 64, uri="/store/work/k/0001/manifest.json")


def runs(uri: str) -> list:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("afm")
    return client.search_runs([experiment.experiment_id]) if experiment else []


def rows(uri: str) -> set[tuple]:
    """Every metric row of every attempt, by attempt and not by run id."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = [
        (run.data.tags.get("afm.attempt"), one.key, one.value, one.step, one.timestamp)
        for run in runs(uri)
        for name in run.data.metrics
        for one in client.get_metric_history(run.info.run_id, name)
    ]
    assert len(found) == len(set(found))
    return set(found)


@pytest.fixture
def spool_directory(tmp_path: Path) -> Path:
    for label in ("sft", "evaluate"):
        spool = MetricSpool(tmp_path / "spool", f"run1:{label}", {"afm.run": "run1", "afm.stage": label})
        for step in range(5):
            spool.log({"loss": 1.0 / (step + 1), "rate": 0.1}, step, timestamp=1_700_000_000_000 + step)
    return tmp_path / "spool"


def test_replay_writes_every_row_once_with_its_own_time_and_step(spool_directory: Path, mlflow_uri: str):
    report = replay(spool_directory, mlflow_uri, "afm")
    assert report.error == ""
    assert (report.attempts, report.metrics) == (2, 20)
    first = rows(mlflow_uri)
    assert len(first) == 20
    assert ("run1:sft", "loss", 0.2, 4, 1_700_000_000_004) in first
    again = replay(spool_directory, mlflow_uri, "afm")
    assert (again.attempts, again.metrics) == (0, 0)
    for offset in spool_directory.glob("*.offset"):
        offset.unlink()
    full = replay(spool_directory, mlflow_uri, "afm")
    assert full.error == ""
    assert full.metrics == 20
    assert rows(mlflow_uri) == first
    assert len(runs(mlflow_uri)) == 3


def test_children_are_nested_below_the_run_and_closed_with_it(spool_directory: Path, mlflow_uri: str):
    replay(spool_directory, mlflow_uri, "afm")
    parent = [run for run in runs(mlflow_uri) if run.data.tags.get("afm.parent")]
    children = [run for run in runs(mlflow_uri) if run.data.tags.get("afm.attempt")]
    assert len(parent) == 1
    assert {one.data.tags["mlflow.parentRunId"] for one in children} == {parent[0].info.run_id}
    assert {one.info.run_name for one in children} == {"sft", "evaluate"}
    assert {one.info.start_time for one in children} == {1_700_000_000_000}
    MetricSpool(spool_directory, "run1:sft").end("FAILED")
    replay(spool_directory, mlflow_uri, "afm", ended="run1")
    statuses = {one.info.run_name: one.info.status for one in runs(mlflow_uri)}
    assert statuses == {"sft": "FAILED", "evaluate": "FINISHED", "run1": "FINISHED"}


def test_growing_spool_is_continued_also_by_another_replayer(spool_directory: Path, mlflow_uri: str):
    replay(spool_directory, mlflow_uri, "afm")
    MetricSpool(spool_directory, "run1:sft").log({"loss": 0.01}, step=9, timestamp=1_700_000_000_009)
    report = replay(spool_directory, mlflow_uri, "afm")
    assert (report.attempts, report.metrics) == (1, 1)
    assert len(rows(mlflow_uri)) == 21
    assert len(runs(mlflow_uri)) == 3


def test_deleted_database_is_filled_again(spool_directory: Path, mlflow_uri: str, empty_database: Path):
    replay(spool_directory, mlflow_uri, "afm")
    first = rows(mlflow_uri)
    file = Path(mlflow_uri.removeprefix("sqlite:///"))
    fresh = file.with_name("fresh.db")
    fresh.write_bytes(empty_database.read_bytes())
    other = f"sqlite:///{fresh}"
    assert replay(spool_directory, other, "afm").metrics == 20
    assert rows(other) == first


def test_tags_parameters_inputs_and_artifacts_reach_mlflow(tmp_path: Path, mlflow_uri: str):
    spool = MetricSpool(tmp_path / "spool", "a")
    for _ in range(2):
        spool.log_params({"sft": {"seed": 1}})
        spool.log_inputs({"tasks": DATA})
        spool.log_artifacts({"output": DATA})
        spool.log({"loss": math.nan, "bad:name*": 1.0}, step=3, timestamp=5)
        report = replay(tmp_path / "spool", mlflow_uri, "afm")
        assert report.error == ""
    spool.log_params({"sft": {"seed": 2}})  # MLflow refuses to change a parameter: the first value stands
    assert replay(tmp_path / "spool", mlflow_uri, "afm").error == ""
    (run,) = runs(mlflow_uri)
    assert run.data.params == {"sft.seed": "1"}
    assert run.data.tags["afm.artifact.output"] == DATA.digest
    assert run.data.tags["afm.nonfinite.loss"] == "nan at step 3"
    assert run.data.metrics == {"bad_name_": 1.0}
    (dataset,) = run.inputs.dataset_inputs
    assert dataset.dataset.digest == DATA.digest[:32]
    assert json.loads(dataset.dataset.source) == DATA.model_dump(mode="json")
    assert dataset.tags[0].value == "tasks"


@pytest.mark.parametrize("uri", ["nonsense://x", "http://127.0.0.1:9", "sqlite:////proc/none/mlflow.db"])
def test_unusable_mlflow_is_reported_and_the_spool_kept(spool_directory: Path, uri: str, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    report = replay(spool_directory, uri, "afm")
    assert report.error
    assert json.loads((spool_directory / "replay.json").read_text())["error"] == report.error
    assert not list(spool_directory.glob("*.offset"))


def test_one_broken_spool_does_not_keep_the_others_back(spool_directory: Path, mlflow_uri: str):
    with (spool_directory / "broken.jsonl").open("w") as stream:
        stream.write('{"metrics": {"x": "not a number"}, "step": 0, "time": 1}\n')
    report = replay(spool_directory, mlflow_uri, "afm")
    assert "broken" in report.error
    assert report.metrics == 20


def test_racing_replays_write_no_row_twice(spool_directory: Path, mlflow_uri: str):
    reports: list = []
    threads = [
        threading.Thread(target=lambda: reports.append(replay(spool_directory, mlflow_uri, "afm"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.error for one in reports] == ["", "", ""]
    assert len(rows(mlflow_uri)) == 20
    assert len(runs(mlflow_uri)) == 3


def test_replayer_brings_everything_on_closing(spool_directory: Path, mlflow_uri: str, own_home: Path):
    replayer = Replayer(spool_directory, TrackingConfig(uri=mlflow_uri), run="run1")
    replayer.start()
    assert replayer.close().error == ""
    assert {one.info.status for one in runs(mlflow_uri)} == {"FINISHED"}
    assert len(rows(mlflow_uri)) == 20
    off = Replayer(spool_directory, TrackingConfig(enabled=False))
    off.start()
    assert off.close() is None


def test_uri_is_configured_or_from_the_environment_or_below_home(monkeypatch, own_home: Path):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri(TrackingConfig()) == f"sqlite:///{own_home}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    assert tracking_uri(TrackingConfig()) == "http://server"
    assert tracking_uri(TrackingConfig(uri="http://mine")) == "http://mine"
