"""Runs an RL job in one process, without Ray: `python rl_process.py JOB.json [STEP]`.

Checkpoints are moved to `kept/` as the stage would seal them. With STEP the process kills itself with SIGKILL once the
checkpoint of that step is kept.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from afm_core.config.environment import silence_telemetry


def keep(directory: Path, kill_at: int | None) -> None:
    """What the stage does beside the worker."""
    kept = directory / "kept"
    kept.mkdir(exist_ok=True)
    while True:
        for path in sorted((directory / "checkpoints").glob("step-??????")):
            path.rename(kept / path.name)
            if path.name == f"step-{kill_at or 0:06d}":
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)


def main(job_path: str, kill_at: str | None = None) -> None:
    silence_telemetry()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    os.environ.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, DS_ACCELERATOR="cpu"
    )
    from afm_core.training.launch import lean_imports

    with lean_imports():
        import deepspeed  # noqa: F401
        import torch.distributed as dist

        from afm_core.training.rl.worker import run

    dist.init_process_group("gloo")
    job = json.loads(Path(job_path).read_text())
    threading.Thread(target=keep, args=(Path(job["directory"]), int(kill_at) if kill_at else None), daemon=True).start()
    run(job)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
