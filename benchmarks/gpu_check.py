"""What this machine's accelerator can do for training: SFT in bf16, weight sync to vLLM with its proof, an RL step.

    python benchmarks/gpu_check.py                      # one GPU, at most 8 minutes
    python benchmarks/gpu_check.py --device cpu --engine transformers --model tiny      # checks the script itself

SFT runs as the stage does, on Ray Train with NCCL. For RL the trainer runs in this process and vLLM in a Ray actor on
the same GPU (Ray would give each a GPU of its own). Prints the figures and writes JSON; exits 1 if a part failed.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from afm_core.config import load_config
from afm_core.config.environment import silence_telemetry


def settings(arguments: argparse.Namespace) -> list[str]:
    """Overrides of the smoke profile for the device."""
    gpu = arguments.device == "gpu"
    dtype = "bf16" if gpu else "fp32"
    return [
        f"model.source={arguments.model}",
        *(
            f"{section}.{name}"
            for section in ("sft", "rl")
            for name in (f"dtype={dtype}", f"gpus_per_worker={int(gpu)}")
        ),
        f"engine.kind={arguments.engine}",
        f"engine.dtype={dtype}",
        f"engine.gpus={int(gpu)}",
        "engine.max_length=1024",
        f"sft.learning_rate={3e-3 if arguments.model == 'tiny' else 2e-4}",
        "sft.epochs=4",
        f"rl.probe_tolerance={0.25 if gpu else 0.01}",
        "rl.steps=1",
        "rl.dev_limit=4",
        "rl.evaluate_every=1",
        "rollout.workers=1",
        "tracking.enabled=false",
    ]


def fine_tune(overrides: Sequence[str]) -> tuple[dict[str, Path], dict[str, Any]]:
    """The road to an SFT model; returns the artifacts' directories and the figures of the SFT stage."""
    from afm_core.execution import RunSession, new_run_id

    paths: dict[str, Path] = {}
    with RunSession(load_config("smoke", None, overrides), new_run_id()) as session:
        made: dict[str, Any] = {}

        def stage(name: str, **inputs: str) -> Any:
            record = session.execute(name, {role: made[source] for role, source in inputs.items()})
            made[name] = record.artifact
            paths[name] = session.store.open(record.artifact).path
            return record

        stage("corpus")
        stage("tasks", corpus="corpus")
        stage("teach", corpus="corpus", tasks="tasks")
        stage("curate", demonstrations="teach", tasks="tasks")
        stage("base", **({"corpus": "corpus"} if "model.source=tiny" in overrides else {}))
        record = stage("sft", base="base", demonstrations="curate")
        lines = (paths["sft"] / "sidecar" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    settled = steps[len(steps) // 2 :]
    speed = sum(one["tokens"] for one in settled) / sum(one["seconds"] for one in settled)
    figures = {name: record.metrics[name] for name in ("steps", "first_loss", "final_loss")}
    return paths, {**figures, "tokens_per_second": round(speed, 1), "stage_seconds": record.seconds}


def reinforce(overrides: Sequence[str], paths: dict[str, Path], gpu: bool, directory: Path) -> dict[str, Any]:
    """One RL step with the trainer in this process and the engine in a Ray actor; figures of sync and step."""
    import torch.distributed as dist

    from afm_core.cluster import connected
    from afm_core.training.channel import Channel
    from afm_core.training.rl.worker import RlJob, run

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ["DS_ACCELERATOR"] = "cuda" if gpu else "cpu"
    dist.init_process_group("nccl" if gpu else "gloo")
    config = load_config("smoke", None, overrides)
    channel = Channel(directory)
    channel.create()
    threading.Thread(target=_forget_checkpoints, args=(channel,), daemon=True).start()
    job = RlJob(
        config=config.model_dump(mode="json"),
        policy=str(paths["sft"]),
        version="sft",
        tasks=str(paths["tasks"] / "tasks.parquet"),
        selected=str(paths["tasks"] / "tasks.parquet"),
        documents=str(paths["corpus"] / "documents.parquet"),
        directory=str(directory),
        resume=None,
        provenance={"method": "gpu check"},
    )
    with connected(config.engine.threads):
        run(job.to_json())
    dist.destroy_process_group()
    events = list(channel.reader().new())
    state = next(event for event in events if event["kind"] == "finished")["state"]
    wanted = ("loss", "gradient_norm", "probe_difference", "logprob_difference", "importance_weight", "trajectories")
    return {
        "end": state["end"],
        "evaluations": len(state["evaluations"]),
        **{name: step[name] for step in state["steps"] for name in wanted},
    }


def _forget_checkpoints(channel: Any) -> None:
    """Stands in for the stage, which seals checkpoints and removes them."""
    import shutil

    while True:
        for path in channel.checkpoints.glob("step-??????"):
            shutil.rmtree(path)
        time.sleep(0.1)


def timed(name: str, work: Callable[[], Any], report: dict[str, Any]) -> Any:
    """Run a part; its figures, seconds or error go into the report."""
    began = time.monotonic()
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - recorded in the report, which decides the exit code
        traceback.print_exc()
        report[name] = {"error": f"{type(error).__name__}: {error}"}
        return None
    figures = result[1] if isinstance(result, tuple) else result
    report[name] = {**figures, "seconds": round(time.monotonic() - began, 1)}
    return result


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--engine", choices=("vllm", "transformers"), default="vllm")
    parser.add_argument("--model", default="smollm2-135m", help="a model source (tiny: random, made on the spot)")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    arguments = parser.parse_args()
    silence_telemetry()
    report: dict[str, Any] = {"device": arguments.device, "engine": arguments.engine, "model": arguments.model}
    overrides = settings(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("AFM_HOME", folder)
        tuned = timed("sft", lambda: fine_tune(overrides), report)
        if tuned is not None:
            work = Path(folder) / "rl"
            timed("rl", lambda: reinforce(overrides, tuned[0], arguments.device == "gpu", work), report)
    print(json.dumps(report, indent=2))
    arguments.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    sys.exit(1 if any(isinstance(part, dict) and "error" in part for part in report.values()) else 0)


if __name__ == "__main__":
    main()
