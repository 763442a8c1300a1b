"""How every stage task runs: execute the stage in the session, tell Prefect what happens, return a reference.

Prefect's cache is off: the artifact store is the only truth. A stage found in the store ends in the state "Cached".
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_link_artifact, create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import get_client
from prefect.runtime import task_run
from prefect.states import Completed, Running, State

from afm_core.execution import Event, Progress, RunSession, StageRecord, Submitted, Waiting, duration
from afm_core.store import ArtifactRef
from tasks.console import Console
from tasks.limits import limits_of, turn

PROGRESS_SECONDS = 5.0


def run_stage(
    session: RunSession, name: str, inputs: Mapping[str, ArtifactRef | None], variant: str = ""
) -> "State[ArtifactRef | None]":
    """Execute a stage as the current Prefect task run; its final state carries the artifact's reference.

    A stage beyond the end of the run's road, and one whose input was therefore not made, carries None.
    """
    made = {role: ref for role, ref in inputs.items() if ref is not None}
    if name not in session.stages or len(made) < len(inputs):
        return Completed(name="Skipped", message=f"this run ends with {session.until}", data=None)
    logger = get_run_logger()
    run = UUID(str(task_run.id))
    reporter = _Reporter(run, Console.current())
    record = session.execute(
        name,
        made,
        variant,
        turn=lambda label: turn(name, run, lambda waiting: reporter.queued(label, name, waiting)),
        on_event=reporter.event,
        on_log=lambda stage, line: logger.info(line),
    )
    reporter.finished(record)
    return Completed(
        name="Cached" if record.cached else "Completed",
        message=f"{record.artifact.kind} {record.artifact.digest[:12]} in {record.seconds:.1f} s",
        data=record.artifact,
    )


class _Reporter:
    """Passes a stage's events to the Prefect run and to the terminal, no more often than is useful."""

    def __init__(self, task_run_id: UUID, console: Console) -> None:
        self._task_run_id = task_run_id
        self._console = console
        self._artifact: UUID | None = None
        self._last = 0.0
        self._waiting = False

    def event(self, stage: str, event: Event) -> None:
        if isinstance(event, Waiting):
            self._waiting = True
            self._set_state("AwaitingLease", event.holder)
            self._console.note(stage, f"waiting for {event.holder}")
        elif isinstance(event, Progress):
            if self._waiting:
                self._waiting = False
                self._set_state("Running", "")
            self._console.progress(stage, event.done, event.total, event.message, event.seconds_left)
            self._progress(stage, event)
        elif isinstance(event, Submitted):
            self._console.note(stage, f"Ray job {event.job}")
            create_link_artifact(key=f"ray-job-{_key(stage)}", link=event.url, link_text=f"Ray job {event.job}")

    def queued(self, stage: str, name: str, waiting: bool) -> None:
        """The stage begins or ends to wait for its turn."""
        if waiting:
            self._console.note(stage, f"waiting for a slot of {', '.join(limits_of(name))}")
        self._set_state("AwaitingSlot" if waiting else "Running", "")

    def finished(self, record: StageRecord) -> None:
        self._console.finished(record)
        if self._artifact is not None:
            with suppress(httpx.HTTPError):  # what is committed is committed, whether it can be shown or not
                update_progress_artifact(self._artifact, progress=100.0)

    def _progress(self, stage: str, event: Progress) -> None:
        if time.monotonic() - self._last < PROGRESS_SECONDS:
            return
        self._last = time.monotonic()
        share = 100.0 * event.done / max(event.total, 1)
        left = "" if event.seconds_left is None else f", {duration(event.seconds_left)} left"
        fields: dict[str, Any] = {
            "progress": share,
            "description": f"{stage}: {event.done}/{event.total}{left} {event.message}".rstrip(),
        }
        if self._artifact is None:
            created = create_progress_artifact(key=f"progress-{_key(stage)}", **fields)
            assert isinstance(created, UUID)
            self._artifact = created
        else:
            update_progress_artifact(self._artifact, **fields)

    def _set_state(self, name: str, message: str) -> None:
        with get_client(sync_client=True) as client:
            client.set_task_run_state(self._task_run_id, Running(name=name, message=message), force=True)


def _key(stage: str) -> str:
    """A stage's label as Prefect takes it in an artifact's key."""
    return stage.replace(":", "-").replace("_", "-").lower()
