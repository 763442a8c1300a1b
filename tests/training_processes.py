"""Training jobs in real processes, one a rank, without Ray; and what they reported."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from afm_core.training.channel import Channel


def run_jobs(root: Path, jobs: list[dict[str, Any]], world_size: int) -> None:
    """All jobs, in order, on `world_size` fresh processes."""
    path = root / f"jobs-{world_size}.json"
    path.write_text(json.dumps(jobs))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    script = Path(__file__).with_name("training") / "worker_process.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(world_size), port, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world_size)
    ]
    outputs = [process.communicate(timeout=500)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * world_size, outputs[0][-4000:]


def losses(root: Path, name: str) -> list[float]:
    """Of the finished event, a step each."""
    return [record["loss"] for record in finished(root, name)["history"]]


def finished(root: Path, name: str) -> dict[str, Any]:
    """The event that a job ended with."""
    return next(event for event in Channel(root / name).reader().new() if event["kind"] == "finished")
