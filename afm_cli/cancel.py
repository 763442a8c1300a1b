"""Stopping a run that this process did not start: by signal here, through Prefect elsewhere, at Ray for what is left.

A run that is told to stop ends itself: its stages seal what they have, its Ray jobs are stopped, its record says
cancelled. Prefect is told first, so that it does not take the end of the process for a crash and start another one.
"""

import os
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afm_core.execution import RunRecord

_STOP_SECONDS = 180.0
"""For a run's own end: the grace time of its stages, and the last replay of its metrics."""


def cancel_run(record: "RunRecord") -> Iterator[str]:
    """Cancel a run; yields what was done, for people. Raises ConfigError if it cannot be reached or is not running."""
    from afm_core.config import ConfigError
    from afm_core.execution import RunStatus
    from afm_core.store import gone

    if record.status is RunStatus.DIED:
        yield from _stop_jobs(record)
        return
    ended = gone(record.process) if record.process else True
    if record.status is not RunStatus.RUNNING or ended:
        raise ConfigError(f"run {record.run_id} is not running on this machine (status {record.status})")
    if ended is None:
        yield _through_prefect(record)
        return
    yield from _by_signal(record)


def _by_signal(record: "RunRecord") -> Iterator[str]:
    from afm_core.store import gone

    assert record.process is not None
    told = _tell_prefect(record, stopped=False)
    os.kill(record.process.pid, signal.SIGTERM)
    yield f"run {record.run_id} is stopping"
    deadline = time.monotonic() + _STOP_SECONDS
    while not gone(record.process):
        if time.monotonic() > deadline:
            yield f"run {record.run_id} has not stopped yet; its process is {record.process.pid}"
            return
        time.sleep(0.1)
    if told:
        _tell_prefect(record, stopped=True)
    yield f"run {record.run_id} has stopped"


def _through_prefect(record: "RunRecord") -> str:
    from afm_core.config import ConfigError

    assert record.process is not None
    if not _tell_prefect(record, stopped=False):
        raise ConfigError(
            f"run {record.run_id} runs on {record.process.host}: cancel it there, or set PREFECT_API_URL to the server "
            "that its flow run belongs to"
        )
    where = f"run {record.run_id} runs on {record.process.host}"
    return f"{where}: Prefect was asked to cancel its flow run {record.links.flow_run}"


def _tell_prefect(record: "RunRecord", *, stopped: bool) -> bool:
    """Set the state of the run's flow run: Cancelling or (`stopped`) Cancelled. False if none can be reached."""
    if not (record.links.flow_run and os.environ.get("PREFECT_API_URL")):
        return False
    from uuid import UUID

    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Cancelled, Cancelling, State

    state: State[Any] = Cancelled() if stopped else Cancelling()
    try:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(UUID(record.links.flow_run), state, force=stopped)
    except (httpx.HTTPError, ObjectNotFound):
        return False
    return True


def _stop_jobs(record: "RunRecord") -> Iterator[str]:
    """The Ray jobs of a run that died and that still go on."""
    from afm_core.config import ConfigError
    from afm_core.execution.ray_api import JobsUnreachable, RayJobs
    from afm_core.execution.ray_job import stop_job

    running = []
    if record.links.ray_dashboard and record.links.ray_jobs:
        try:
            jobs = RayJobs(record.links.ray_dashboard)
            known = {job: jobs.info(job) for job in record.links.ray_jobs.values()}
        except JobsUnreachable as error:
            raise ConfigError(f"run {record.run_id} died, and its Ray jobs cannot be looked at: {error}") from error
        running = [job for job, info in known.items() if info is not None and not info.status.is_terminal()]
    if not running:
        raise ConfigError(
            f"run {record.run_id} is not running: it died, and left nothing; `afm runs resume` continues it"
        )
    for job in running:
        ended = stop_job(jobs, job)
        yield f"Ray job {job} of the died run {record.run_id} {'has stopped' if ended else 'does not stop'}"
