"""Tells the Prefect server of new task pool versions: the event that a retraining deployment listens to.

A version is marked as announced after the server has confirmed the event, so an announcement may come twice and never
not at all. Twice is harmless: the event has the same id, and a retraining that was done is cached.
"""

import asyncio
import uuid

from prefect.events import Event, Resource, get_events_client

from afm_core.store import Store
from afm_core.taskcraft import PoolVersion, mark_announced, unannounced

EVENT = "afm.tasks.published"
_RECONNECTIONS = 2


def announce(store: Store, pool: str) -> list[PoolVersion]:
    """Announce every version of a pool that nobody was told of, and mark it; returns them.

    Raises:
        Exception: whatever Prefect's client raises if the server of PREFECT_API_URL cannot be reached; the versions
        that were not confirmed stay unannounced.
    """
    versions = unannounced(store, pool)
    for version in versions:
        asyncio.run(_emit(published(store, version)))
        mark_announced(store, version)
    return versions


def published(store: Store, version: PoolVersion) -> Event:
    """The event of a version: resource afm.pool.NAME; payload: pool, version, digest, counts, store."""
    metrics = store.manifest(version.ref).metrics
    return Event(
        id=uuid.uuid5(uuid.NAMESPACE_URL, f"{version.ref.uri}#{version}"),
        event=EVENT,
        resource=Resource(
            {"prefect.resource.id": f"afm.pool.{version.pool}", "prefect.resource.name": f"task pool {version.pool}"}
        ),
        payload={
            "pool": version.pool,
            "version": version.version,
            "digest": version.ref.digest,
            "store": store.uri,
            **{name: count for name, count in metrics.items() if name.startswith(("tasks", "added"))},
        },
    )


async def _emit(event: Event) -> None:
    async with get_events_client(reconnection_attempts=_RECONNECTIONS, checkpoint_every=1) as client:
        await client.emit(event)
