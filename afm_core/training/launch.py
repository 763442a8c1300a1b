"""Ray Train around the training workers: start, follow, stop, and say why it ended.

Used minimally: Ray Train places one process a rank, sets up torch.distributed and watches the processes. Checkpoints
and metrics go through the channel (see `channel`), because they belong to the store, not to Ray. There are no retries
in here: a failed attempt ends, and the next one resumes from the sealed checkpoint.
"""

import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from afm_core.cluster import connected
from afm_core.config import ConfigError, TrainerConfig
from afm_core.config.environment import lean_imports
from afm_core.training.channel import Channel
from afm_core.training.errors import TrainingFailed, TrainingWorkerDied

_LOG = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_UNUSED_CALLBACKS = ("PlacementGroupCleanerCallback", "DatasetsCallback")
_CONSEQUENCES = ("Connection closed by peer", "Connection reset by peer", "NCCL", "gloo")
"""What the surviving ranks say when another rank is gone: never the cause."""


@contextmanager
def connected_ray(config: TrainerConfig, other_cpus: int = 0) -> Iterator[None]:
    """The Ray at $RAY_ADDRESS, else a small local one that ends with this block.

    other_cpus: logical CPUs that a local one has beside those of the training workers.

    Raises:
        ConfigError: the cluster is too small for the configured workers.
    """
    import ray

    with connected(config.world_size * config.threads + other_cpus):
        _check_resources(ray.cluster_resources(), config)
        yield


def follow(
    entry: str,
    job: dict[str, Any],
    config: TrainerConfig,
    channel: Channel,
    on_event: Callable[[dict[str, Any]], None],
    stopping: threading.Event,
    storage: Path,
) -> None:
    """Run the job's workers to their end; calls `on_event` in this thread for every event, in order.

    entry: the module whose `run` is called with the job on every rank.
    When `stopping` is set the workers are asked to save and end; before they have started they are left at once.

    Raises:
        TrainingWorkerDied: a process was killed or lost. TrainingFailed: the loop raised.
    """
    failure: list[BaseException] = []
    thread = threading.Thread(
        target=_fit, args=({"entry": entry, "job": job}, config, storage, failure), name="ray-train", daemon=True
    )
    thread.start()
    events = channel.reader()
    last: dict[str, Any] = {}
    started = False
    while True:
        alive = thread.is_alive()
        for event in events.new():
            started = True
            last = event if "pss_bytes" in event else last
            on_event(event)
        if not alive:
            break
        if stopping.is_set():
            channel.ask_to_stop()
            if not started:
                return
        thread.join(_POLL_SECONDS)
    if failure:
        raise _explained(failure[0], last) from failure[0]


def _fit(work: dict[str, Any], config: TrainerConfig, storage: Path, failure: list[BaseException]) -> None:
    # Preemptions need no watcher: a lost worker ends the attempt, and the next one resumes.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig

    resources: dict[str, float] = {"CPU": config.threads}
    if config.gpus_per_worker:
        resources["GPU"] = config.gpus_per_worker
    trainer = _trainer_class()(
        run_worker,
        train_loop_config=work,
        torch_config=TorchConfig(backend="nccl" if config.gpus_per_worker else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=config.world_size,
            use_gpu=bool(config.gpus_per_worker),
            resources_per_worker=resources,
        ),
        run_config=RunConfig(
            name="training",
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=0),
            worker_runtime_env={"env_vars": _worker_environment(config)},
        ),
    )
    try:
        trainer.fit()
    except BaseException as error:  # noqa: BLE001 - handed to the following thread, which raises it
        failure.append(error)


def _trainer_class() -> Any:
    """TorchTrainer without two helper actors, a process each.

    The placement group cleaner is detached: it outlives the run for good where it cannot tell several local Rays
    apart, and Ray removes the group with the stage's connection anyway. The dataset manager has no dataset here.
    """
    from ray.train.torch import TorchTrainer

    class Trainer(TorchTrainer):
        def _create_default_callbacks(self) -> list[Any]:
            callbacks = super()._create_default_callbacks()
            return [each for each in callbacks if type(each).__name__ not in _UNUSED_CALLBACKS]

    return Trainer


def run_worker(work: dict[str, Any]) -> None:
    """What Ray Train calls on every rank (imported by name there): `run(job)` of the module `entry`."""
    with lean_imports():
        import deepspeed  # noqa: F401

        module = importlib.import_module(work["entry"])
    module.run(work["job"])


def _worker_environment(config: TrainerConfig) -> dict[str, str]:
    return {
        "DS_ACCELERATOR": "cuda" if config.gpus_per_worker else "cpu",
        "DEEPSPEED_LOG_LEVEL": "warning",
        "OMP_NUM_THREADS": str(config.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


def _check_resources(available: dict[str, float], config: TrainerConfig) -> None:
    for name, each in (("CPU", config.threads), ("GPU", config.gpus_per_worker)):
        if config.world_size * each > available.get(name, 0):
            raise ConfigError(
                f"training needs {config.world_size} workers x {each} {name}, Ray has {available.get(name, 0):g}: "
                "lower world_size or threads, or enlarge the cluster (execution.ray_cpus for a local one)"
            )


def _explained(error: BaseException, last: dict[str, Any]) -> Exception:
    """Ray Train's error as ours: the first cause, and the memory figures if a process died."""
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    if not failures:
        return TrainingFailed(f"{type(error).__name__}: {error}")
    deaths = {rank: cause for rank, cause in failures.items() if _is_death(cause)}
    if deaths:
        rank, cause = min(deaths.items())
        return TrainingWorkerDied(f"training worker {rank} died: {_one_line(cause)}{_memory_note(last)}")
    causes = {rank: cause for rank, cause in failures.items() if not _is_consequence(cause)} or failures
    rank, cause = min(causes.items())
    # A lost connection is infrastructure, e.g. rollout workers that died more often than they may.
    kind = TrainingWorkerDied if isinstance(cause, ConnectionError) else TrainingFailed
    return kind(f"training worker {rank}: {type(cause).__name__}: {_one_line(cause)}")


def _is_death(error: Exception) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"RayActorError", "WorkerHealthCheckFailedError", "WorkerHealthCheckTimeoutError"})


def _is_consequence(error: Exception) -> bool:
    return any(text in str(error) for text in _CONSEQUENCES)


def _one_line(error: Exception, limit: int = 600) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= limit else f"{text[:limit]}..."


def _memory_note(last: dict[str, Any]) -> str:
    if not last:
        return ""
    used, free = last["pss_bytes"] / 2**30, last["available_bytes"] / 2**30
    return f" (worker 0 last reported {used:.2f} GiB in use, {free:.2f} GiB available on its machine)"
