"""A sampler over Ray actors, an engine in each, for more machines or GPUs than the trainer's process has.

Every worker always has one `poll` on its way, so ended episodes and a worker's death are both known within a second.
A worker whose process died is replaced: the new one loads the current weights and starts the lost episodes again with
the same seeds. What a worker *raises* is never tried again; it is the run's error.

Deterministic: episodes are dealt out in turn, counted from the last load. Otherwise the least busy worker gets the
next one, and no worker is given much more than its engine has slots for.

Weights travel as a directory that every machine can read; with vLLM on GPUs and a trainer on GPUs, over NCCL (see
afm_core.engines.vllm_transfer). Actors belong to the process that made them and end with it. They are placed outside
the placement group of a Ray Train worker that calls this: that group has no room for them.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from afm_core.config import AgentConfig, EngineConfig, RolloutConfig
from afm_core.data import Trajectory
from afm_core.engines import Generation
from afm_core.engines.vllm_transfer import Broadcast, broadcasts
from afm_core.rollout.local import log_aborted
from afm_core.rollout.pool import RolloutStalled
from afm_core.rollout.ray_actors import WATCH, RolloutWorkerDied, WorkerPlan, deaths, explained, kill, one_line
from afm_core.rollout.ray_worker import MakeEngine, MakeTools, Memory, Report
from afm_core.rollout.sampler import EpisodeRequest, Weights

_LOG = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_CLOSE_SECONDS = 5.0
_ANSWER_SECONDS = 900.0
_HUNG = 1.2
"""Multiple of the stall time after which a worker that reports no stall itself is taken to hang inside its engine."""


@dataclass(eq=False)
class _Worker:
    """An actor, the poll that is on its way, and the episodes that it has, in order."""

    index: int
    actor: Any
    polling: Any = None
    episodes: dict[str, EpisodeRequest] = field(default_factory=dict)
    memory: Memory | None = None
    advanced: float = 0.0

    def call(self, method: str, *arguments: Any) -> Any:
        """Ask for a method of its LocalSampler; calls are carried out in order."""
        return self.actor.call.remote(method, *arguments)

    def poll(self) -> Any:
        """The poll that is on its way; sends one if there is none."""
        if self.polling is None:
            self.polling = self.actor.poll.options(concurrency_group=WATCH).remote(_POLL_SECONDS)
        return self.polling

    def watch(self, method: str) -> Any:
        """Ask for what is answered at once, whatever the engine does."""
        return getattr(self.actor, method).options(concurrency_group=WATCH).remote()


class RaySampler:
    """See afm_core.rollout.sampler.Sampler. A Ray must be joined already.

    make_engine and make_tools are called in each worker's process; they are sent there, so they must be functions of
    modules (functools.partial of such will do). trainer_gpus: GPUs of the process that calls `load`.

    Raises:
        ConfigError: the cluster has no room for the workers, or a worker says so of its engine.
        RuntimeError: a worker could not start; the message holds its error.
        RolloutWorkerDied: workers died more often than they may while they started.
    """

    def __init__(
        self,
        make_engine: MakeEngine,
        make_tools: MakeTools,
        agent: AgentConfig,
        engine: EngineConfig,
        rollout: RolloutConfig,
        *,
        trainer_gpus: int = 0,
    ) -> None:
        assert rollout.workers > 0, "rollout.workers = 0 is the LocalSampler's"
        self._plan = WorkerPlan(make_engine, make_tools, agent, engine, rollout)
        self._queue: deque[EpisodeRequest] = deque()
        self._keys: set[str] = set()
        self._ended: list[tuple[str, Trajectory]] = []
        self._dealt = 0
        self._deaths = 0
        self._weights: Weights | None = None
        self._over_network = broadcasts(engine, trainer_gpus)
        self._broadcast: Broadcast | None = None
        self._plan.check_room()
        self._workers = [_Worker(index, self._plan.spawn(index)) for index in range(rollout.workers)]
        try:
            self._everywhere("pending")
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> list[int]:
        """Process ids of the workers, in their order."""
        return self._settle(lambda worker: worker.watch("pid"), self._workers)

    def load(self, weights: Weights) -> str:
        """Give every worker the weights; returns the first digest that is not `weights.version`, if any."""
        self._weights, self._dealt = weights, 0
        if self._over_network:
            return self._send(weights)
        digests = self._everywhere("load_directory", weights.directory(), weights.version)
        for index, digest in enumerate(digests):
            if digest != weights.version:
                _LOG.error("rollout worker %d loaded weights %s, not %s", index, digest, weights.version)
        return next((digest for digest in digests if digest != weights.version), weights.version)

    def start(self, requests: Sequence[EpisodeRequest]) -> None:
        """Begin episodes, in order. Raises ValueError for a key that is in use."""
        for request in requests:
            if request.key in self._keys:
                raise ValueError(f"an episode with the key {request.key!r} is already running or not yet collected")
            self._keys.add(request.key)
            self._queue.append(request)
        self._deal()

    def collect(self, timeout: float) -> list[tuple[str, Trajectory]]:
        """Episodes that ended, waiting up to `timeout` seconds for the first. For errors see Sampler."""
        until = time.monotonic() + timeout
        while not self._ended and self._keys:
            self._hear(min(_POLL_SECONDS, max(0.0, until - time.monotonic())))
            self._check_stalled()
            if time.monotonic() >= until:
                break
        ended, self._ended = self._ended, []
        self._keys -= {key for key, _ in ended}
        return ended

    def pending(self) -> int:
        """Episodes that were started and not yet collected."""
        return len(self._keys)

    def probe(self, prompt_ids: Sequence[int], tokens: int) -> list[Generation]:
        """Greedy continuation of the prompt by every worker, in their order."""
        return [one for answers in self._everywhere("probe", list(prompt_ids), tokens) for one in answers]

    def rest(self) -> None:
        """Free what workers only need for sampling, until the next load. Raises ValueError if any episode pends."""
        if self._keys:
            raise ValueError(f"{len(self._keys)} episodes are pending: collect them before the sampler rests")
        self._everywhere("rest")

    def close(self) -> None:
        """End every worker: in order if it answers soon, else by force."""
        import ray

        workers, self._workers = self._workers, []
        if not workers or not ray.is_initialized():
            return
        with suppress(ray.exceptions.RayError):
            closing = [worker.call("close") for worker in workers]
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SECONDS)
        for worker in workers:
            kill(worker.actor)

    def _everywhere(self, method: str, *arguments: Any) -> list[Any]:
        return self._settle(lambda worker: worker.call(method, *arguments), self._workers)

    def _settle(self, ask: Callable[[_Worker], Any], workers: Sequence[_Worker]) -> list[Any]:
        """Every worker's answer, in order. A worker that dies meanwhile is replaced and asked again."""
        import ray

        asked = {ask(worker): worker for worker in workers}
        answers: dict[int, Any] = {}
        while asked:
            ready, _ = ray.wait(list(asked), num_returns=1, timeout=_ANSWER_SECONDS)
            if not ready:
                raise RolloutStalled(self._silence(next(iter(asked.values()))))
            worker = asked.pop(ready[0])
            try:
                answers[worker.index] = ray.get(ready[0])
            except deaths() as error:
                self._replace(worker, error)
                asked[ask(worker)] = worker
            except ray.exceptions.RayTaskError as error:
                raise explained(worker.index, error) from error
        return [answers[worker.index] for worker in workers]

    def _hear(self, timeout: float) -> None:
        """Take what workers have to tell, waiting for the first."""
        import ray

        polls = [worker.poll() for worker in self._workers]
        ready, _ = ray.wait(polls, num_returns=1, timeout=timeout)
        if ready:  # whoever else is ready is heard in the same turn
            ready, _ = ray.wait(polls, num_returns=len(polls), timeout=0)
        for worker in [one for one in self._workers if one.polling in ready]:
            try:
                self._take(worker, ray.get(worker.polling))
            except deaths() as error:
                self._replace(worker, error)
            except ray.exceptions.RayTaskError as error:
                raise explained(worker.index, error) from error
        self._deal()

    def _take(self, worker: _Worker, report: Report) -> None:
        worker.polling = None
        worker.poll()
        worker.memory, worker.advanced = report.memory, time.monotonic() - report.idle_seconds
        for key, trajectory in report.ended:
            del worker.episodes[key]
            log_aborted(key, trajectory)
            self._ended.append((key, trajectory))

    def _deal(self) -> None:
        """Give waiting episodes to workers."""
        given: dict[_Worker, list[EpisodeRequest]] = {}
        while self._queue and (worker := self._next_worker()) is not None:
            request = self._queue.popleft()
            self._dealt += 1
            if not worker.episodes:
                worker.advanced = time.monotonic()
            worker.episodes[request.key] = request
            given.setdefault(worker, []).append(request)
        for worker, requests in given.items():
            worker.call("start", requests)

    def _next_worker(self) -> _Worker | None:
        if self._plan.rollout.deterministic:
            return self._workers[self._dealt % len(self._workers)]
        worker = min(self._workers, key=lambda one: len(one.episodes))
        slots = self._plan.engine.slots
        return worker if len(worker.episodes) <= slots + slots // 4 else None

    def _replace(self, worker: _Worker, error: Exception) -> None:
        """A new process for a worker that died: current weights, and its episodes from their beginning."""
        if getattr(error, "actor_init_failed", False):
            raise explained(worker.index, error) from error
        self._deaths += 1
        limit = self._plan.rollout.maximum_restarts
        note = f" (it last reported {worker.memory})" if worker.memory else ""
        message = f"rollout worker {worker.index} died: {one_line(error)}{note}"
        if self._deaths > limit:
            raise RolloutWorkerDied(f"{message}; deaths: {self._deaths}, rollout.maximum_restarts: {limit}") from error
        _LOG.warning("%s; it is replaced and its %d episodes start again", message, len(worker.episodes))
        kill(worker.actor)
        worker.actor, worker.polling = self._plan.spawn(worker.index), None
        self._broadcast = None
        if self._weights is not None:
            loaded = (self._weights.directory(), self._weights.version)
            self._settle(lambda one: one.call("load_directory", *loaded), [worker])
        if worker.episodes:
            worker.call("start", list(worker.episodes.values()))
        worker.advanced = time.monotonic()

    def _send(self, weights: Weights) -> str:
        """Broadcast over NCCL; the engines cannot hash what they hold, so the probe alone proves it."""
        import ray

        if self._broadcast is None:
            engine = self._plan.engine

            def control(step: str, arguments: Sequence[tuple[Any, ...]]) -> None:
                ray.get([w.call("transfer", step, *given) for w, given in zip(self._workers, arguments, strict=True)])

            address = ray.util.get_node_ip_address()
            self._broadcast = Broadcast(control, address, workers=len(self._workers), gpus_per_worker=engine.gpus)
        self._broadcast.send(weights.state(), weights.version)
        return weights.version

    def _check_stalled(self) -> None:
        """A worker's own sampler reports a stall; one that hangs inside its engine cannot."""
        longest = _HUNG * self._plan.rollout.stall_seconds + _POLL_SECONDS
        for worker in self._workers:
            if worker.episodes and time.monotonic() - worker.advanced > longest:
                raise RolloutStalled(self._silence(worker))

    def _silence(self, worker: _Worker) -> str:
        import ray

        try:
            stacks = ray.get(worker.watch("stacks"), timeout=_CLOSE_SECONDS)
        except ray.exceptions.RayError as error:
            stacks = f"its stacks could not be read: {one_line(error)}"
        return f"rollout worker {worker.index} has not advanced for too long\n{stacks}"
