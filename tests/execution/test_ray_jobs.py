"""Stages as jobs of a real Ray cluster: told live, killed, stopped, adopted, out of sight; and no secret told.

A stage is held at work by its lease: the test has it, so that the job waits, and says so, until the test lets go.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from ray_cluster import SECRETS, RayHead, ray_head, stage_process, wait_for

from afm_cli.runs import runs
from afm_core.config import ConfigError, load_config
from afm_core.execution import (
    Event,
    FailureKind,
    Finished,
    RunRecord,
    RunSession,
    RunStatus,
    StageFailed,
    Submitted,
    Waiting,
    find_run,
    is_retryable,
    key_of,
    ray_job,
)
from afm_core.execution.ray_api import RayJobs
from afm_core.execution.ray_job import JobLost, Reports, run_job
from afm_core.execution.ray_target import ray_target
from afm_core.store import ArtifactKind, StageSpec, Store, gone, open_store

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("ray_access")]


class Stage:
    """The stage `corpus` as a job, run in a thread."""

    def __init__(self, head: RayHead, folder: Path) -> None:
        self.overrides = (
            "execution.runner=ray_job",
            f"execution.ray_dashboard={head.dashboard}",
            f"store.uri={folder / 'store'}",
            "tracking.enabled=false",
            "execution.ray_job_stop_seconds=2",
        )
        self.config = load_config("smoke", None, self.overrides)
        self.store: Store = open_store(str(folder / "store"), folder / "cache")
        self.spec = StageSpec(stage="corpus", config=self.config.model_dump(mode="json"), store_uri=self.store.uri)
        self.jobs = RayJobs(head.dashboard)
        self.log = folder / "corpus.log"
        self.events: list[Event] = []
        self.lines: list[str] = []
        self._pool = ThreadPoolExecutor(4)

    @contextmanager
    def held(self, scratch: Path) -> Iterator[None]:
        """Whoever works on the key waits while the block runs."""
        with ExitStack() as stack:
            attempt = self.store.attempt(
                key=key_of(self.spec), spec=self.spec, kind=ArtifactKind.CORPUS, sections=(), scratch=scratch
            )
            stack.enter_context(attempt)
            yield

    def start(self, seconds: float = 60, lost: float = 20) -> "Future[Finished]":
        target = ray_target(self.config, self.store.uri)
        assert target is not None
        return self._pool.submit(
            run_job,
            self.spec,
            target=target,
            store=self.store,
            run_id="a-run",
            label="corpus",
            environment={"AFM_RUN_ID": "a-run", **target.environment(self.config, self.log.parent / "home")},
            timeout_seconds=seconds,
            reports=Reports(self.log, self.events.append, self.lines.append, lambda job: None),
            lost_seconds=lost,
        )

    def waiting(self) -> None:
        """Return when the job has said that it waits."""
        wait_for(lambda: any(isinstance(event, Waiting) for event in self.events))

    def state(self, job: str) -> str:
        info = self.jobs.info(job)
        return "absent" if info is None else str(info.status)


@pytest.fixture
def stage(head: RayHead, tmp_path: Path) -> Stage:
    # Ids of earlier tests are still known to the cluster: a run of its own for each.
    return Stage(head, tmp_path)


@pytest.fixture(autouse=True)
def _own_ids(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain: Callable[[str, str, int], str] = ray_job.job_id
    monkeypatch.setattr(ray_job, "job_id", lambda run, label, number: plain(f"{tmp_path.name}-{run}", label, number))


def job_of(tmp_path: Path, number: int = 1) -> str:
    return ray_job.job_id("a-run", "corpus", number)


def test_a_job_tells_live_how_it_stands_and_ray_is_told_no_secret(stage: Stage, tmp_path: Path) -> None:
    with stage.held(tmp_path / "scratch"):
        running = stage.start()
        stage.waiting()
        info = stage.jobs.info(job_of(tmp_path))
        assert info is not None
        assert not any(secret in json.dumps(info.dict(), default=str) for secret in SECRETS.values())
        assert not running.done()
    finished = running.result(timeout=60)
    assert stage.store.manifest(finished.ref).metrics == finished.metrics
    assert stage.store.leases().newest(key_of(stage.spec)).attempt == job_of(tmp_path)
    assert any("Running entrypoint" in line for line in stage.lines)
    assert stage.log.read_text().splitlines() == stage.lines
    assert isinstance(stage.events[-1], Finished)
    assert stage.state(job_of(tmp_path)) == "SUCCEEDED"
    assert stage.store.backend.names("specs") == []


def test_kill_9_of_the_stage_is_told_and_a_retry_is_another_job(stage: Stage, tmp_path: Path) -> None:
    with stage.held(tmp_path / "scratch"):
        running = stage.start()
        stage.waiting()
        process = stage_process(job_of(tmp_path))
        assert process is not None
        process.kill()
        with pytest.raises(StageFailed, match="killed by SIGKILL") as caught:
            running.result(timeout=60)
    assert caught.value.kind is FailureKind.DIED
    assert is_retryable(caught.value)
    assert stage.start().result(timeout=60).cached is False
    assert [stage.state(job_of(tmp_path, number)) for number in (1, 2, 3)] == ["FAILED", "SUCCEEDED", "absent"]


def test_a_job_that_is_out_of_sight_is_adopted_by_the_retry(stage: Stage, tmp_path: Path) -> None:
    with stage.held(tmp_path / "scratch"):
        first = stage.start()
        stage.waiting()
        process = stage_process(job_of(tmp_path))
        stage.events.clear()
        second = stage.start()
        stage.waiting()  # told again, from the log's beginning
        assert stage_process(job_of(tmp_path)) == process
    assert first.result(timeout=60).ref == second.result(timeout=60).ref
    assert stage.state(job_of(tmp_path, 2)) == "absent"


def test_a_job_beyond_its_time_is_stopped(stage: Stage, tmp_path: Path) -> None:
    with stage.held(tmp_path / "scratch"):
        with pytest.raises(StageFailed, match="limit of 1 s") as caught:
            stage.start(seconds=1).result(timeout=90)
    assert caught.value.kind is FailureKind.TIMEOUT
    assert stage.state(job_of(tmp_path)) in ("STOPPED", "FAILED")  # by the run, or the job's own clock was first
    assert stage_process(job_of(tmp_path)) is None


def test_a_cancelled_run_leaves_no_job_no_process_and_no_lease(stage: Stage, tmp_path: Path, own_home: Path) -> None:
    """Its stage hangs (stopped in the middle of its work), so that the grace time runs out."""
    job = job_of(tmp_path)
    told: list[Event] = []
    failures: list[BaseException] = []

    def work(run: RunSession) -> None:
        try:
            run.execute("corpus", {}, on_event=lambda _, event: told.append(event))
        except StageFailed as error:
            failures.append(error)

    with suppress(KeyboardInterrupt), RunSession(stage.config, "a-run") as run:
        worker = threading.Thread(target=work, args=(run,))
        worker.start()
        holder = wait_for(lambda: run.store.leases().newest(key_of(stage.spec)))
        os.kill(holder.process.pid, signal.SIGSTOP)
        raise KeyboardInterrupt
    worker.join(timeout=60)
    assert stage.state(job) == "STOPPED"
    wait_for(lambda: not psutil.pid_exists(holder.process.pid), 20)  # Ray tells of the end as it sends the last signal
    assert gone(holder.process)
    assert stage.store.leases().dead(holder)
    assert isinstance(told[0], Submitted)
    assert told[0].url == f"{stage.jobs.dashboard}/#/jobs/{job}"
    record = find_run(own_home, "a-run").load()
    assert (record.status, record.links.ray_jobs) == (RunStatus.CANCELLED, {"corpus": job})
    assert failures[0].kind is FailureKind.INTERRUPTED
    with RunSession(stage.config, "another-run") as run:
        assert not run.execute("corpus", {}).cached


_RUN = """
import sys
from afm_cli.run import stop_on_signals
from afm_core.config import load_config
from afm_core.execution import RunSession
stop_on_signals()
with RunSession(load_config("smoke", None, sys.argv[2:]), sys.argv[1]) as run:
    run.execute("corpus", {})
"""


@pytest.mark.parametrize("killed", [False, True], ids=["running", "died"])
def test_cancel_from_elsewhere_stops_the_job_of_a_run_that_goes_on_or_died(
    head: RayHead, stage: Stage, tmp_path: Path, own_home: Path, killed: bool
) -> None:
    run_id = f"{tmp_path.name}-run"
    with stage.held(tmp_path / "scratch"):
        process = subprocess.Popen([sys.executable, "-c", _RUN, run_id, *stage.overrides])
        links = wait_for(lambda: _record(own_home) and _record(own_home).links.ray_jobs)
        job = links["corpus"]
        wait_for(lambda: stage_process(job))
        if killed:
            process.kill()
            process.wait()
            assert _record(own_home).status is RunStatus.DIED
            assert stage.state(job) == "RUNNING"
        ended = CliRunner().invoke(runs, ["cancel", "last"], catch_exceptions=False)
        assert "has stopped" in ended.output
        assert process.wait(timeout=60) != 0
    assert _record(own_home).status is (RunStatus.DIED if killed else RunStatus.CANCELLED)
    assert stage.state(job) == "STOPPED"
    assert stage_process(job) is None


def _record(home: Path) -> RunRecord | None:
    with suppress(ConfigError):
        return find_run(home, "last").load()
    return None


def test_a_wrong_token_is_the_users_mistake(head: RayHead, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private.authentication_test_utils import reset_auth_token_state

    monkeypatch.setenv("RAY_AUTH_TOKEN", "x" * 48)
    reset_auth_token_state()
    with pytest.raises(ConfigError, match="RAY_AUTH_TOKEN"):
        RayJobs(head.dashboard)


def test_kill_9_of_the_ray_head_is_a_failure_of_infrastructure_and_leaves_no_process(
    head: RayHead, tmp_path: Path
) -> None:
    with ray_head() as mine:
        stage = Stage(mine, tmp_path)
        with stage.held(tmp_path / "scratch"):
            running = stage.start(lost=3)
            stage.waiting()
            assert stage_process(job_of(tmp_path)) is not None
            mine.kill()
            with pytest.raises(JobLost, match="out of sight") as caught:
                running.result(timeout=60)
            assert is_retryable(caught.value)
            wait_for(lambda: stage_process(job_of(tmp_path)) is None)
    assert not Stage(head, tmp_path).start().result(timeout=60).cached
