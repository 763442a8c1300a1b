"""Starting rollout workers as Ray actors, and saying how they end. See afm_core.rollout.ray_workers."""

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from afm_core.config import AgentConfig, ConfigError, EngineConfig, RolloutConfig
from afm_core.rollout.pool import RolloutStalled
from afm_core.rollout.ray_worker import MakeEngine, MakeTools, RolloutWorker

_LOG = logging.getLogger(__name__)

WATCH = "watch"
"""The concurrency group of calls that must be answered while the engine works; other calls keep their order."""

_REASON = "The actor is dead because"
_ROOM_SECONDS = 20.0
_WATCHERS = 3


class RolloutWorkerDied(RuntimeError, ConnectionError):
    """Rollout workers were killed or lost more often than `rollout.maximum_restarts` allows. Infrastructure."""


@dataclass(frozen=True)
class WorkerPlan:
    """What every worker is made from."""

    make_engine: MakeEngine
    make_tools: MakeTools
    agent: AgentConfig
    engine: EngineConfig
    rollout: RolloutConfig

    def spawn(self, index: int) -> Any:
        """Start an actor; returns at once."""
        import ray

        environment = {
            "OMP_NUM_THREADS": str(self.engine.threads),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            # No engine-core child: what vLLM then starts for several GPUs watches a pipe of the actor and ends with it.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
        actor = ray.remote(concurrency_groups={WATCH: _WATCHERS})(RolloutWorker)
        _LOG.info("starting rollout worker %d", index)
        return actor.options(
            num_cpus=self.engine.threads,
            num_gpus=self.engine.gpus,
            max_restarts=0,
            scheduling_strategy="DEFAULT",
            runtime_env={"env_vars": environment},
        ).remote(self.make_engine, self.make_tools, self.agent, self.rollout)

    def check_room(self) -> None:
        """Wait a moment for resources that are being freed. Raises ConfigError if there will be no room."""
        import ray

        needed = {"CPU": self.rollout.workers * self.engine.threads, "GPU": self.rollout.workers * self.engine.gpus}
        until = time.monotonic() + _ROOM_SECONDS
        while True:
            total, free = ray.cluster_resources(), ray.available_resources()
            missing = [name for name, count in needed.items() if count > free.get(name, 0.0)]
            if not missing:
                return
            hopeless = any(needed[name] > total.get(name, 0.0) for name in missing)
            if hopeless or time.monotonic() > until:
                raise ConfigError(self._no_room(missing[0], free.get(missing[0], 0.0), total.get(missing[0], 0.0)))
            time.sleep(1.0)

    def _no_room(self, name: str, free: float, total: float) -> str:
        key = "threads" if name == "CPU" else "gpus"
        return (
            f"rollouts need {self.rollout.workers} workers x {getattr(self.engine, key)} {name}, Ray has {free:g} free "
            f"of {total:g}: lower rollout.workers or engine.{key}, or enlarge the cluster (execution.ray_cpus for a "
            "local one)"
        )


def deaths() -> tuple[type[Exception], ...]:
    """What Ray raises when a process or its machine is gone."""
    from ray import exceptions

    return (exceptions.RayActorError, exceptions.ObjectLostError, exceptions.NodeDiedError)


def explained(index: int, error: Any) -> Exception:
    """What worker `index` raised, as an exception of this process."""
    cause = error.cause if isinstance(getattr(error, "cause", None), Exception) else error
    if isinstance(cause, ConfigError):
        return ConfigError(str(cause))
    if isinstance(cause, RolloutStalled):
        return RolloutStalled(f"rollout worker {index}: {cause}")
    return RuntimeError(f"rollout worker {index}: {type(cause).__name__}: {one_line(cause)}")


def kill(actor: Any) -> None:
    """End an actor's process; nothing happens if it is gone."""
    import ray

    with suppress(ray.exceptions.RayError, ValueError):
        ray.kill(actor, no_restart=True)


def one_line(error: BaseException, limit: int = 600) -> str:
    """An error's text for the end of a line; of a death, Ray's reason without its identifiers."""
    text = " ".join(str(error).split())
    text = text[max(0, text.find(_REASON)) :]
    return text if len(text) <= limit else f"{text[:limit]}..."
