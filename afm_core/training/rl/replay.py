"""One update on saved rollouts, without an engine: the same trainer, the same experience file, no sampler.

Useful to look into a step that went wrong, to try another loss or learning rate on it, and to check that a training
is what it says: from the same weights the update has the same loss and the same gradient.
"""

import os
import socket
from pathlib import Path
from typing import Any

from afm_core.config import RlConfig
from afm_core.training.rl.experience import read_experience


def replay(step_directory: Path, model_directory: Path, config: RlConfig, output: Path | None) -> dict[str, Any]:
    """Train the model on a step's experience.parquet, in this process; returns the update's record.

    output: where the updated model is written (nowhere if None). The optimizer starts afresh, so after the first step
    of a training the weights differ from those that the training made.

    Raises:
        ValueError: no readable experience. TrainingFailed: loss or gradient not finite.
    """
    rows = read_experience(step_directory)
    config = config.model_copy(update={"world_size": 1})
    _join_alone(config)
    import torch
    import torch.distributed as dist

    from afm_core.training.deepspeed_engine import DeepSpeedEngine, load_for_training
    from afm_core.training.export import save_model
    from afm_core.training.lora import merge
    from afm_core.training.models import provenance_of
    from afm_core.training.rl.policy import PolicyLoss
    from afm_core.training.rl.reference import FrozenReference
    from afm_core.training.rl.update import update

    torch.set_num_threads(config.threads)
    try:
        module = PolicyLoss(load_for_training(model_directory, config), config)
        engine = DeepSpeedEngine(module, config)
        reference = FrozenReference(model_directory, config, engine.device) if config.kl_coefficient else None
        record = update(engine, rows, config, 1, reference)
        if output is not None:
            state = engine.model_state()
            assert state is not None, "a world of one holds all weights"
            state = merge(state, config.lora) if config.lora is not None else state
            provenance = {"method": "rl replay", "base": provenance_of(model_directory), "rows": len(rows)}
            dtype = "bfloat16" if config.dtype == "bf16" else "float32"
            save_model(state, model_directory, output, provenance, dtype)
    finally:
        dist.destroy_process_group()
    from dataclasses import asdict

    return asdict(record)


def _join_alone(config: RlConfig) -> None:
    """A process group of one, which DeepSpeed needs."""
    import torch.distributed as dist

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        DS_ACCELERATOR="cuda" if config.gpus_per_worker else "cpu",
    )
    dist.init_process_group("nccl" if config.gpus_per_worker else "gloo")
