"""Trains saved experience on one rank, job after job, without Ray and without an engine that samples.

python update_process.py RANK WORLD PORT JOBS.json
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
    from afm_core.training.launch import lean_imports

    with lean_imports():
        import deepspeed  # noqa: F401
        import torch
        import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for job in json.loads(Path(jobs).read_text()):
        result = run(job)
        if rank == "0":
            Path(job["result"]).write_text(json.dumps(result))
    dist.destroy_process_group()


def run(job: dict[str, Any]) -> dict[str, Any]:
    """The records of `steps` updates on the same experience, and the scores before and after."""
    from afm_core.config import RlConfig
    from afm_core.training import loss
    from afm_core.training.deepspeed_engine import DeepSpeedEngine, load_for_training
    from afm_core.training.rl.experience import read_experience
    from afm_core.training.rl.policy import PolicyLoss
    from afm_core.training.rl.reference import FrozenReference
    from afm_core.training.rl.update import score, update

    loss.CHUNK = job["chunk"]
    config = RlConfig.model_validate(job["config"])
    base, rows = Path(job["base"]), read_experience(Path(job["experience"]))
    engine = DeepSpeedEngine(PolicyLoss(load_for_training(base, config), config), config)
    reference = FrozenReference(base, config, engine.device) if config.kl_coefficient else None
    before = score(engine, rows, config)
    records = [asdict(update(engine, rows, config, step, reference)) for step in range(1, job["steps"] + 1)]
    return {"records": records, "before": before, "after": score(engine, rows, config)}


if __name__ == "__main__":
    main(*sys.argv[1:])
