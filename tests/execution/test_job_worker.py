"""What a stage process does itself when it is a Ray job: it keeps its time, and brings its metrics to MLflow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from afm_core.config import load_config
from afm_core.execution import Event, Failed, FailureKind, Finished, key_of
from afm_core.execution.events import decode
from afm_core.store import ArtifactKind, StageSpec, Store, open_store
from afm_core.tracking import MetricSpool

pytestmark = pytest.mark.integration
MARK = "@afm-of-a-test"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), tmp_path / "cache")


def spec_of(store: Store) -> StageSpec:
    return StageSpec(stage="corpus", config=load_config("smoke").model_dump(mode="json"), store_uri=store.uri)


def run(store: Store, tmp_path: Path, **environment: str) -> Event:
    """The stage with a job's environment; its last event, read from one log of both outputs."""
    path = tmp_path / "spec.json"
    path.write_text(spec_of(store).model_dump_json())
    done = subprocess.run(
        [sys.executable, "-m", "afm_cli.main", "stage", str(path)],
        env={**os.environ, "AFM_RUN_ID": "a-run", "AFM_EVENT_MARK": MARK, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    events = [line for line in done.stdout.splitlines() if line.startswith(f"{MARK} ")]
    return decode(events[-1].removeprefix(f"{MARK} "))


def test_a_job_that_nobody_watches_ends_after_its_time(store: Store, tmp_path: Path) -> None:
    held = store.attempt(
        key=key_of(spec_of(store)), spec=spec_of(store), kind=ArtifactKind.CORPUS, sections=(), scratch=tmp_path / "s"
    )
    with held:
        ended = run(store, tmp_path, AFM_STAGE_SECONDS="1")
    assert isinstance(ended, Failed)
    assert ended.kind is FailureKind.INTERRUPTED


def test_a_job_brings_the_metrics_of_its_node_to_mlflow_before_it_tells_its_end(
    store: Store, tmp_path: Path, own_home: Path
) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    spool = MetricSpool(own_home / "spool", "a-run:corpus", {"afm.run": "a-run", "afm.stage": "corpus"})
    spool.log({"loss": 0.5}, 3, 1_700_000_000_000)  # of an attempt that was killed here
    ended = run(store, tmp_path, AFM_REPLAY="1", AFM_ATTEMPT="a-run-corpus-1", MLFLOW_TRACKING_URI=uri)
    assert isinstance(ended, Finished)
    assert store.leases().newest(key_of(spec_of(store))).attempt == "a-run-corpus-1"
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("afm")
    (found,) = client.search_runs([experiment.experiment_id], "tags.`afm.stage` = 'corpus'")
    (point,) = client.get_metric_history(found.info.run_id, "loss")
    assert (point.step, point.timestamp, point.value) == (3, 1_700_000_000_000, 0.5)
