"""Runs training jobs one after the other on one rank, without Ray.

python worker_process.py RANK WORLD PORT JOBS.json
"""

import json
import os
import sys
from pathlib import Path

from afm_core.config.environment import silence_telemetry


def main(rank: str, world_size: str, port: str, jobs: str) -> None:
    silence_telemetry()
    os.environ.update(
        RANK=rank,
        LOCAL_RANK=rank,
        WORLD_SIZE=world_size,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
        DS_ACCELERATOR="cpu",
    )
    import torch.distributed as dist

    from afm_core.training.worker import run

    dist.init_process_group("gloo")
    for job in json.loads(Path(jobs).read_text()):
        run(job)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
