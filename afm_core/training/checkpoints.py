"""Training checkpoints: directories that appear whole, and the space they need.

A checkpoint directory `step-000020` holds DeepSpeed's files (weights, optimizer) and progress.json (the loop's state:
the step, and with it the data position, the schedule and the seeds follow from it). The workers write it under a
temporary name, flush it to disk and rename it; the stage process seals it into the store, which keeps its hashes, and
forgets the old ones.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from afm_core.config import ConfigError

PROGRESS = "progress.json"
_TEMPORARY = ".writing"


def checkpoint_name(step: int) -> str:
    """The directory's and the seal's name; sorts by step."""
    return f"step-{step:06d}"


def checkpoint_step(name: str) -> int:
    """The step of a checkpoint's name."""
    return int(name.rpartition("-")[2])


def write_checkpoint(
    root: Path, step: int, progress: Any, save: Callable[[Path], None], rank: int, barrier: Callable[[], None]
) -> Path:
    """Write `root/step-N` atomically; every rank calls it, rank 0 names it. Returns the final path.

    progress: the loop's state as JSON values.
    """
    final = root / checkpoint_name(step)
    temporary = root / (final.name + _TEMPORARY)
    if rank == 0:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    barrier()
    save(temporary)
    barrier()
    if rank == 0:
        (temporary / PROGRESS).write_text(json.dumps(progress))
        flush(temporary)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        _sync(root)
    barrier()
    return final


def read_progress(checkpoint: Path) -> Any:
    """The loop's state in a checkpoint, as JSON values. Raises ValueError if it is damaged."""
    try:
        return json.loads((checkpoint / PROGRESS).read_text())
    except OSError as error:
        raise ValueError(f"{checkpoint} is not a readable checkpoint: {error}") from error


def superseded(scores: dict[int, float], keep_last: int, keep_best: int) -> list[int]:
    """Steps whose checkpoints may go: neither among the newest nor among those of the lowest loss.

    scores: step -> mean training loss since the checkpoint before.
    """
    newest = set(sorted(scores)[-keep_last:])
    best = set(sorted(scores, key=lambda step: (scores[step], step))[:keep_best])
    return sorted(set(scores) - newest - best)


def checkpoint_bytes(parameters: int, trainable: int, weight_bytes: int) -> int:
    """Size of one checkpoint: all weights, and for every trained one two Adam moments (and an fp32 master if bf16)."""
    masters = 4 * trainable if weight_bytes < 4 else 0
    return parameters * weight_bytes + 8 * trainable + masters


def check_disk_space(directories: Iterable[Path], checkpoint: int, kept: int, model: int) -> None:
    """Refuse to start where the run could not end for want of space.

    Beside the kept checkpoints there is one being written and one being sealed.

    Raises:
        ConfigError: with the bytes needed and free.
    """
    needed = checkpoint * (kept + 2) + model
    for directory in directories:
        free = shutil.disk_usage(directory).free
        if free < needed:
            raise ConfigError(
                f"training needs {_gigabytes(needed)} of free disk at {directory} ({kept} kept and 2 moving "
                f"checkpoints of {_gigabytes(checkpoint)}, the model {_gigabytes(model)}), available are "
                f"{_gigabytes(free)}: free some space, point AFM_HOME elsewhere, or lower sft.keep_last"
            )


def flush(directory: Path) -> None:
    """Every file and folder below a directory is on the disk when this returns."""
    for path in sorted(directory.rglob("*")):
        _sync(path)
    _sync(directory)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e6:.2f} MB"
