"""A sampler on one engine in this process. Episodes advance while `collect`, `load` or `probe` runs, not by themselves.

As many episodes run at once as the engine has slots; the others wait in order. Deterministic: the same calls in the
same order give the same bytes, and since `load` empties every cache, a fresh process that loads the same weights goes
on exactly like one that has been running.

Departs from the textbook: an episode that spans a load is not thrown away. It is held at the end of its running turn
and goes on with the new weights; each turn's segment says which version sampled it.
"""

import itertools
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from afm_core.config import AgentConfig
from afm_core.data import Origin, Segment, Status, Tag, Trajectory
from afm_core.engines import Engine, Generation, GenerationRequest
from afm_core.rollout.batch import DEFAULT_CONCURRENCY
from afm_core.rollout.episode import Episode, Setting, digest
from afm_core.rollout.latency import delayed
from afm_core.rollout.pool import EpisodePool
from afm_core.rollout.sampler import EpisodeRequest, Weights
from afm_core.tools.protocol import Tool

_LOG = logging.getLogger(__name__)


class LocalSampler:
    """See afm_core.rollout.sampler.Sampler. The engine belongs to the sampler, which closes it.

    lent_weights: the trainer changes its weights only while the sampler rests, so the engine need not copy them all.
    Raises whatever the engine raises; an exception inside one episode ends that episode alone, as aborted.
    """

    def __init__(
        self,
        engine: Engine,
        tools: Mapping[Tag, Tool],
        agent: AgentConfig,
        *,
        deterministic: bool = True,
        stall_seconds: float = 1800.0,
        simulated_tool_seconds: float = 0.0,
        lent_weights: bool = False,
    ) -> None:
        self._engine = engine
        self._tools = delayed(tools, simulated_tool_seconds)
        self._agent = agent
        self._pool = EpisodePool(engine, deterministic=deterministic, stall_seconds=stall_seconds)
        self._slots = int(getattr(engine, "slots", DEFAULT_CONCURRENCY))
        self._waiting: deque[EpisodeRequest] = deque()
        self._running: dict[str, str] = {}
        self._ended: list[tuple[str, Trajectory]] = []
        self._keys: set[str] = set()
        self._probes = itertools.count()
        self._lent = lent_weights
        self.paused = False

    @property
    def engine(self) -> Any:
        """The engine, for what is special to its kind."""
        return self._engine

    @property
    def idle_seconds(self) -> float:
        """Since an episode last advanced; 0 while there are none."""
        return self._pool.idle_seconds

    def load(self, weights: Weights) -> str:
        """Replace the engine's weights: straight from tensors where it can take them, else from a directory."""
        self.pause()
        take = getattr(self._engine, "load_state", None)
        if take is not None:
            take(weights.state(), weights.version, lent=self._lent)
        else:
            self._engine.load_weights(weights.directory(), weights.version)
        self.resume()
        return self.loaded

    def load_directory(self, directory: Path, version: str) -> str:
        """`load` of weights that another process wrote."""
        self.pause()
        self._engine.load_weights(directory, version)
        self.resume()
        return self.loaded

    def transfer(self, step: str, *arguments: Any) -> None:
        """One step of a weight transfer over the network, a method of the engine; episodes pause until the last."""
        self.pause()
        getattr(self._engine, step)(*arguments)
        if step == "end_transfer":
            self.resume()

    @property
    def loaded(self) -> str:
        """Digest of the weights that were loaded last, as the engine knows it, else the version it was told."""
        return str(getattr(self._engine, "weights_digest", "") or self._engine.policy_version)

    def pause(self) -> None:
        """Let running turns finish and hold all episodes; nothing is submitted until `resume`."""
        if not self.paused:
            self._take(self._pool.pause())
            self.paused = True

    def resume(self) -> None:
        """Let the held episodes go on."""
        self._pool.resume()
        self.paused = False

    def start(self, requests: Sequence[EpisodeRequest]) -> None:
        """Begin episodes, in order. Raises ValueError for a key that is in use."""
        for request in requests:
            if request.key in self._keys:
                raise ValueError(f"an episode with the key {request.key!r} is already running or not yet collected")
            self._keys.add(request.key)
            self._waiting.append(request)

    def collect(self, timeout: float) -> list[tuple[str, Trajectory]]:
        """Advance until an episode has ended or `timeout` seconds have passed, one step at least."""
        until = time.monotonic() + timeout
        while not self._ended and not self.paused and (self._waiting or len(self._pool)):
            self._admit()
            self._take(self._pool.tick())
            if time.monotonic() >= until:
                break
        ended, self._ended = self._ended, []
        self._keys -= {key for key, _ in ended}
        return ended

    def pending(self) -> int:
        """Episodes that were started and not yet collected."""
        return len(self._keys)

    def probe(self, prompt_ids: Sequence[int], tokens: int) -> list[Generation]:
        """Greedy continuation of the prompt; episodes in flight advance beside it."""
        name = f"probe-{next(self._probes)}"
        self._pool.ask(GenerationRequest(name, tuple(prompt_ids), tokens))
        while (generation := self._pool.answer(name)) is None:
            self._take(self._pool.tick())
        return [generation]

    def rest(self) -> None:
        """Free the engine's caches and weights where it can, until the next load. Raises ValueError if any pends."""
        if self._keys:
            raise ValueError(f"{len(self._keys)} episodes are pending: collect them before the sampler rests")
        free = getattr(self._engine, "rest", None)
        if free is not None:
            free()

    def dump(self) -> str:
        """Every live episode and every thread's stack, for people."""
        return self._pool.dump()

    def close(self) -> None:
        """Drop what runs and close the engine."""
        self._pool.abort("the sampler was closed")
        self._waiting.clear()
        self._keys.clear()
        self._engine.close()

    def _admit(self) -> None:
        while self._waiting and len(self._pool) < self._slots:
            request = self._waiting.popleft()
            setting = self._setting(request)
            try:
                episode = Episode(request.task, setting, request.sample)
                if episode.id in self._running:
                    raise ValueError(f"the same attempt is running as {self._running[episode.id]!r}")
            except Exception as error:  # noqa: BLE001 - recorded: this episode is aborted, the others go on
                self._put(request.key, _unborn(request, setting, f"{type(error).__name__}: {error}"))
                continue
            self._running[episode.id] = request.key
            self._pool.start(episode)

    def _setting(self, request: EpisodeRequest) -> Setting:
        engine = self._engine
        return Setting(
            engine.tokenizer,
            self._agent,
            self._tools,
            engine.policy_version,
            engine.max_length,
            request.mode,
            temperature=request.temperature,
            seed=request.seed,
        )

    def _take(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            self._put(self._running.pop(episode.id), episode.trajectory())

    def _put(self, key: str, trajectory: Trajectory) -> None:
        log_aborted(key, trajectory)
        self._ended.append((key, trajectory))


def log_aborted(key: str, trajectory: Trajectory) -> None:
    """Say in the log why an episode was aborted: its group goes on without it, and nobody may have to guess."""
    if trajectory.status is Status.ABORTED:
        error = trajectory.provenance.get("error", "")
        _LOG.warning("episode %s (task %s) was aborted: %s", key, trajectory.task_id, error)


def _unborn(request: EpisodeRequest, setting: Setting, error: str) -> Trajectory:
    """The trajectory of an episode that could not even begin."""
    task = request.task
    return Trajectory(
        id=digest(task.id, request.key, setting.policy_version)[:16],
        task_id=task.id,
        question=task.question,
        grammar=setting.agent.grammar.value,
        source=setting.policy_version,
        segments=(Segment(origin=Origin.PROMPT, text=task.question),),
        status=Status.ABORTED,
        provenance={"mode": request.mode.value, "sample": str(request.sample), "error": error},
    )
