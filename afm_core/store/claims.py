"""A claim: one process at a time does a thing that is no stage. The same leases, heartbeats and verdicts as a stage's.

A claim of a process that died is taken over; one that is held is waited for. Its work must be safe to repeat, because
whoever takes over cannot know how far the dead one came.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from afm_core.store.lease import Heartbeat, Holder, this_process

if TYPE_CHECKING:
    from afm_core.store.store import Store


@contextmanager
def claimed(store: "Store", name: str) -> Iterator[None]:
    """Hold the claim `name` for the block; waits while another live process (or thread) holds it.

    Raises:
        ConfigError, StoreUnavailable, OSError: the store refuses or does not answer.
    """
    holder = _take(store, name)
    heartbeat = Heartbeat(store.backend, holder, store.timing.heartbeat)
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop()
        store.leases().finish(holder, "released")


def _take(store: "Store", name: str) -> Holder:
    leases = store.leases()
    while True:
        newest = leases.newest(name)
        if newest is None or leases.dead(newest):
            epoch = newest.epoch + 1 if newest else 1
            holder = Holder(key=name, epoch=epoch, attempt=uuid.uuid4().hex, process=this_process())
            if leases.take(holder):
                return holder
            continue
        store.timing.sleep(store.timing.poll)
