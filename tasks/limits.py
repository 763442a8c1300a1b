"""What a stage takes of a Prefect server's limits (deployments/limits.yaml), and its turn to take it.

Not limits on Prefect's task tags: such a task waits before it knows whether its stage is cached, so that a nightly run
with nothing to do would stand in the queue for the GPU.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLeaseHolder
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency

EVERY_STAGE = "stage"

TAKES: Mapping[str, Sequence[str]] = {
    "curate": ("ray",),
    "sft": ("ray", "gpu"),
    "select": ("gpu",),
    "rl": ("ray", "gpu"),
    "evaluate": ("gpu",),
    "diagnose": ("gpu",),
}
"""stage -> the limits of which it takes a slot, beside the one of every stage."""

LEASE_SECONDS = 60.0
"""A slot whose holder was killed is free after this; a living holder renews it."""


def limits_of(stage: str) -> list[str]:
    """Names of the limits that bound how many stages like this one run at once, over all runs of a server."""
    return [EVERY_STAGE, *TAKES.get(stage, ())]


@contextmanager
def turn(stage: str, task_run: UUID, on_wait: Callable[[bool], None] = lambda waiting: None) -> Iterator[None]:
    """Hold a slot of every limit that the stage takes; a limit that the server does not have bounds nothing.

    `on_wait` is told True when the stage begins to wait for a slot, and False when it has it. What was done in the
    block stays done if the server is away at its end.
    """
    limits = _present(limits_of(stage))
    if not limits:
        yield
        return
    held = _slots(limits, task_run, max_retries=0)
    try:
        held.__enter__()
    except ConcurrencySlotAcquisitionError as error:
        if not _all_taken(error):
            raise
        on_wait(True)
        held = _slots(limits, task_run, max_retries=None)
        held.__enter__()
        on_wait(False)
    try:
        yield
    finally:
        with suppress(httpx.HTTPError):  # a slot that cannot be given back ends with its lease
            held.__exit__(None, None, None)


def _present(names: Sequence[str]) -> list[str]:
    """Those of the limits that the server has: Prefect would warn of the others in every stage's log."""
    with get_client(sync_client=True) as client:
        there = {one.name for one in client.read_global_concurrency_limits(limit=200)}
    return [name for name in names if name in there]


def _slots(limits: list[str], task_run: UUID, max_retries: int | None) -> AbstractContextManager[None]:
    holder = ConcurrencyLeaseHolder(type="task_run", id=task_run)
    return concurrency(limits, max_retries=max_retries, lease_duration=LEASE_SECONDS, holder=holder)


def _all_taken(error: Exception) -> bool:
    cause = error.__cause__
    return isinstance(cause, httpx.HTTPStatusError) and cause.response.status_code == httpx.codes.LOCKED
