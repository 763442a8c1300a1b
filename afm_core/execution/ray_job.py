"""A stage as a job of a Ray cluster: submit it, pass on what it says, bound its time, tell how it died.

The job's id is the attempt's id. It runs the same `afm stage SPEC` as a local process, its spec lies in the store. The
job does not die with the run that submitted it: what it commits is in the store, and the run that follows waits for its
lease and takes its artifact over. So a retry after a lost connection *adopts* the job that still runs, instead of
stopping it: nothing is wrong with the work, and hours of it would be lost. Whoever wants it stopped cancels the run.
"""

import queue
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from afm_core.config import ConfigError
from afm_core.execution.events import Event, FailureKind, Finished
from afm_core.execution.job_log import EVENT_MARK, JobLog
from afm_core.execution.process import exit_words
from afm_core.execution.ray_api import JobExists, JobsUnreachable, RayJobs, Tail
from afm_core.execution.ray_target import RayTarget
from afm_core.execution.runner import StageFailed, stoppable, verdict
from afm_core.execution.stages import key_of
from afm_core.store import StageSpec, Store

if TYPE_CHECKING:
    from ray.job_submission import JobDetails

ATTEMPT = "AFM_ATTEMPT"
"""Environment variable of a job: the attempt's id."""
STAGE_SECONDS = "AFM_STAGE_SECONDS"
"""Environment variable of a job: its time limit, which it keeps itself should nobody watch it."""
REPLAY = "AFM_REPLAY"
"""Environment variable of a job: set, it brings its metrics to MLflow itself."""
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""Ray's own: seconds between SIGTERM and SIGKILL. It reads it in the process that supervises the job, which has the
job's environment, so that it can be set for each job; the default is 3."""
POLL_SECONDS = 0.5
LOST_SECONDS = 60.0
"""How long a head that does not answer is asked before the attempt counts as lost."""
_RAY_SECONDS = 20.0
"""What Ray may take for its own part in stopping a job."""
_MARK_METADATA = "afm.mark"


class JobLost(StageFailed):
    """Nobody can tell how the job stands: its cluster does not answer, or does not know it. It may go on."""


@dataclass(frozen=True)
class Reports:
    """Where a job's reports go. `on_job` is told the id once the job is known to the cluster; may raise to stop it."""

    log_path: Path
    on_event: Callable[[Event], None]
    on_log: Callable[[str], None]
    on_job: Callable[[str], None]


def run_job(
    spec: StageSpec,
    *,
    target: RayTarget,
    store: Store,
    run_id: str,
    label: str,
    environment: Mapping[str, str],
    timeout_seconds: float,
    reports: Reports,
    lost_seconds: float = LOST_SECONDS,
) -> Finished:
    """Run `afm stage SPEC` as a job to its end; `environment` must hold no secret.

    Raises:
        ConfigError: the stage refused its configuration or input, or the cluster the token or the resources.
        StageFailed: anything else that is not an artifact, with the cause of death.
    """
    own = {**environment, STAGE_SECONDS: f"{timeout_seconds:.0f}", STOP_WAIT: str(target.stop_seconds)}
    own |= {} if target.is_local else {REPLAY: "1"}
    try:
        jobs = RayJobs(target.dashboard)
        job, mark = _submit_or_adopt(jobs, target, spec, store, run_id, label, own)
    except JobsUnreachable as error:
        raise StageFailed(str(error), FailureKind.INFRASTRUCTURE) from error
    log = JobLog(mark, reports.log_path, reports.on_event, reports.on_log)
    watch = _Watch(jobs, job, log, lost_seconds, target.stop_seconds)
    ended, asked = _watched(watch, lambda: reports.on_job(job), timeout_seconds)
    with suppress(OSError, ConfigError):  # what is left of it harms nobody
        store.backend.delete(_spec_path(job))
    death = watch.timed_out or cause_of_death(ended, asked)
    succeeded, final = ended.driver_exit_code == 0, log.last
    if final is None and succeeded:  # its log cannot be read: the store is the only truth
        final = _from_store(store, spec)
    return verdict(final, succeeded, death, f"{reports.log_path}, {target.job_url(job)}")


def _watched(watch: "_Watch", begun: Callable[[], None], timeout_seconds: float) -> "tuple[JobDetails, bool]":
    """How the job ended, and whether this run had asked it to stop; a job whose run fails meanwhile is stopped."""
    try:
        with stoppable(watch.stop) as running:
            begun()
            ended = watch.until_end(timeout_seconds)
    except JobLost:
        raise
    except BaseException:
        watch.stop()
        raise
    return ended, running.asked.is_set()


def job_id(run_id: str, label: str, number: int) -> str:
    """The id of a stage's attempt: it stands in URLs and file names."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", f"{run_id}-{label}-{number}")


def stop_job(jobs: RayJobs, job: str, seconds: float = 60.0) -> bool:
    """Stop a job that has `seconds` for it, and wait for its end; False if the cluster does not answer or obey."""
    deadline = time.monotonic() + seconds + _RAY_SECONDS
    try:
        jobs.stop(job)
        while (info := jobs.info(job)) is not None and not info.status.is_terminal():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
    except JobsUnreachable:
        return False
    return True


def cause_of_death(info: "JobDetails", asked: bool) -> StageFailed:
    """Why a job ended without an artifact, in one line: exit code, signal, memory, node, or that it was stopped.

    `asked`: this run asked it to stop.
    """
    if str(info.status) == "STOPPED":
        by = "this run" if asked else "somebody else (`ray job stop`, Ray's dashboard or `afm runs cancel`)"
        return StageFailed(f"Ray job {info.submission_id} was stopped by {by}", FailureKind.INTERRUPTED)
    text, code = " ".join((info.message or "").split()), info.driver_exit_code
    if code is not None:
        told = exit_words(code)
        if "SIGKILL" in told:
            told += " (as the kernel does when its node is out of memory)"
        return StageFailed(f"Ray job {info.submission_id}: {told}", FailureKind.DIED)
    if info.error_type == "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE":
        return StageFailed(
            f"Ray job {info.submission_id}: no node has what execution.ray_job_cpus and ray_job_gpus ask for",
            FailureKind.CONFIGURATION,
        )
    memory = "; its node ran out of memory" if re.search(r"low on memory|out of memory|OOM", text) else ""
    return StageFailed(
        f"Ray job {info.submission_id} was lost{memory}: {_telling(text) or info.error_type}",
        FailureKind.INFRASTRUCTURE,
    )


class _Watch:
    """One job until its end: its log as it comes, and its state."""

    def __init__(self, jobs: RayJobs, job: str, log: JobLog, lost_seconds: float, stop_seconds: float) -> None:
        self.log = log
        self.timed_out: StageFailed | None = None
        self._jobs = jobs
        self._job = job
        self._lost_seconds = lost_seconds
        self._stop_seconds = stop_seconds
        self._answered = time.monotonic()

    def until_end(self, timeout_seconds: float) -> "JobDetails":
        """The job's state when it has ended. Raises StageFailed when the cluster is lost, or has lost the job."""
        started: float | None = None
        tail = Tail(self._jobs, self._job)
        tail.start()
        try:
            while True:
                info = self._info()
                if info is not None and info.status.is_terminal():
                    break
                self._read(tail, POLL_SECONDS)
                if info is not None and str(info.status) == "RUNNING":
                    started = started or time.monotonic()
                    if time.monotonic() - started >= timeout_seconds and self.timed_out is None:
                        self._time_out(timeout_seconds)
        finally:
            tail.close()
        self._read(tail, 0)
        self._catch_up()
        return info

    def stop(self) -> None:
        """Stop the job, and return when it has ended or cannot be reached."""
        stop_job(self._jobs, self._job, self._stop_seconds)

    def _info(self) -> "JobDetails | None":
        """None while the head does not answer."""
        try:
            info = self._jobs.info(self._job)
        except JobsUnreachable as error:
            silent = time.monotonic() - self._answered
            if silent >= self._lost_seconds:
                told = (
                    f"no answer from the Ray head for {silent:.0f} s, so Ray job {self._job} is out of sight: {error}"
                )
                raise JobLost(told, FailureKind.INFRASTRUCTURE) from error
            return None
        self._answered = time.monotonic()
        if info is None:
            told = (
                f"the Ray head at {self._jobs.dashboard} does not know Ray job {self._job} any more: it was restarted"
            )
            raise JobLost(told, FailureKind.INFRASTRUCTURE)
        return info

    def _read(self, tail: Tail, seconds: float) -> None:
        """Pass on what has come, after waiting at most `seconds` for something."""
        try:
            self.log.take(*tail.pieces.get(timeout=seconds) if seconds else tail.pieces.get_nowait())
            while True:
                self.log.take(*tail.pieces.get_nowait())
        except queue.Empty:
            return

    def _catch_up(self) -> None:
        """What the live log did not bring."""
        try:
            self.log.take(0, self._jobs.log(self._job))
        except JobsUnreachable as error:
            self.log.note(f"the rest of the job's log cannot be read: {error}")
        self.log.close()

    def _time_out(self, seconds: float) -> None:
        self.timed_out = StageFailed(
            f"Ray job {self._job} was stopped after its limit of {seconds:.0f} s", FailureKind.TIMEOUT
        )
        self.stop()


def _submit_or_adopt(
    jobs: RayJobs,
    target: RayTarget,
    spec: StageSpec,
    store: Store,
    run_id: str,
    label: str,
    environment: Mapping[str, str],
) -> tuple[str, str]:
    """The id and the event mark of a job for this stage: one that still runs, else a new one."""
    number = 1
    while True:
        job = job_id(run_id, label, number)
        known = jobs.info(job)
        if known is not None and not known.status.is_terminal():
            return job, (known.metadata or {}).get(_MARK_METADATA, "")
        number += 1
        if known is not None:
            continue
        path, mark = _spec_path(job), f"@afm-{secrets.token_hex(8)}"
        store.backend.write(path, spec.model_dump_json(indent=2).encode())
        own = {**environment, ATTEMPT: job, EVENT_MARK: mark}
        metadata = {"afm.run": run_id, "afm.stage": label, _MARK_METADATA: mark}
        try:
            jobs.submit(job, target.entrypoint(f"{store.uri}/{path}"), metadata=metadata, **target.options(own))
        except JobExists:
            number -= 1  # somebody was faster: adopt it
            continue
        return job, mark


def _spec_path(job: str) -> str:
    return f"specs/{job}.json"


def _from_store(store: Store, spec: StageSpec) -> Finished | None:
    found = store.lookup(key_of(spec), spec.generation)
    return None if found is None else Finished(ref=store.ref(found), cached=False, metrics=dict(found.metrics))


def _telling(message: str) -> str:
    """The part of Ray's message that says something to a person."""
    for pattern in (r"The actor died[^.]*\.[^.]*\.", r"runtime_env setup failed:.*", r".*"):
        if found := re.search(pattern, message):
            return found.group()[:300]
    return ""
