"""Joining or starting a Ray, the one way for all stages.

Where Ray comes from cannot change a result, so that this room stands in no stage's key. A run starts one Ray for all of
its stages (see afm_core.execution.ray_head) and names it in RAY_ADDRESS; a stage on its own starts what it needs.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OBJECT_STORE_BYTES = 120_000_000
START_ATTEMPTS = 3


@contextmanager
def connected(cpus: int, object_store_bytes: int = OBJECT_STORE_BYTES) -> Iterator[None]:
    """A connection to Ray: the present one, the cluster of RAY_ADDRESS, or a small local one for the while.

    Args:
        cpus: logical CPUs of the local one.
        object_store_bytes: size of its object store.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    if address:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    else:
        start_local(cpus, object_store_bytes)
    try:
        yield
    finally:
        ray.shutdown()


def start_local(cpus: int, object_store_bytes: int = OBJECT_STORE_BYTES) -> None:
    """Start a small local Ray. A loaded machine can be slower than Ray's fixed 30 s for its own start: try again."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    for left in reversed(range(START_ATTEMPTS)):
        try:
            ray.init(**local_options(cpus, object_store_bytes))
            return
        except Exception as error:
            ray.shutdown()
            if left == 0 or "timed out during startup" not in str(error):
                raise
            logging.getLogger(__name__).warning("the local Ray was slow to start; trying again")


def local_options(cpus: int, object_store_bytes: int) -> dict[str, Any]:
    """Arguments of `ray.init` for a laptop's Ray: a small object store, no dashboard, quiet.

    `address="local"`: without it Ray joins whatever cluster `ray start` left running on this machine, and then refuses
    the other arguments.
    """
    return {
        "address": "local",
        "num_cpus": cpus,
        "object_store_memory": object_store_bytes,
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": logging.WARNING,
    }
