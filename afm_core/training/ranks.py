"""What the processes of a training job share: waiting for each other and for the stage, and what they use of memory."""

import os
import time

import psutil
import torch.distributed as dist

from afm_core.training.channel import Channel

_POLL_SECONDS = 0.1


def barrier() -> None:
    """Wait for all ranks."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()


def wait_for_sealing(rank: int, channel: Channel) -> None:
    """At most one unsealed checkpoint lies on the disk: the stage removes it when it is sealed (a collective call)."""
    while rank == 0 and any(channel.checkpoints.iterdir()):
        time.sleep(_POLL_SECONDS)
    barrier()


def memory() -> dict[str, int]:
    """This process's proportional set size, and the machine's available memory, in bytes."""
    return {
        "pss_bytes": psutil.Process(os.getpid()).memory_full_info().pss,
        "available_bytes": psutil.virtual_memory().available,
    }
