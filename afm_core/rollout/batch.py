"""A list of tasks solved by one engine in this process: what evaluation and rejection sampling need."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from afm_core.config import AgentConfig
from afm_core.data import AgentTask, Status, Tag, Trajectory
from afm_core.engines import Engine
from afm_core.rollout.episode import Episode, Mode, Setting
from afm_core.rollout.pool import EpisodePool
from afm_core.tools.protocol import Tool

DEFAULT_CONCURRENCY = 32
"""Episodes in flight where an engine does not say how many it serves well."""


def run_episodes(
    tasks: Sequence[AgentTask],
    engine: Engine,
    tools: Mapping[Tag, Tool],
    agent: AgentConfig,
    *,
    mode: Mode = Mode.AGENT,
    examples: Sequence[Trajectory] = (),
    temperature: float = 0.0,
    seed: int = 0,
    on_finished: Callable[[Trajectory], None] | None = None,
    stopping: threading.Event | None = None,
    deterministic: bool = True,
    concurrency: int | None = None,
    stall_seconds: float = 600.0,
) -> list[Trajectory]:
    """Solve every task once; trajectories in the order of `tasks`. A task given n times is sampled n times.

    on_finished: called with each trajectory as it ends (not with those that `stopping` aborts).
    stopping: when set, the rest ends as aborted. concurrency: episodes in flight; default is the engine's slots.
    Raises RolloutStalled, and whatever the engine or on_finished raises.
    """
    setting = Setting(
        engine.tokenizer,
        agent,
        dict(tools),
        engine.policy_version,
        engine.max_length,
        mode,
        examples,
        temperature,
        seed,
    )
    pool = EpisodePool(engine, deterministic=deterministic, stall_seconds=stall_seconds)
    limit = concurrency or int(getattr(engine, "slots", DEFAULT_CONCURRENCY))
    waiting = deque(_episodes(tasks, setting))
    order = [episode.id for episode in waiting]
    done: dict[str, Trajectory] = {}
    try:
        while waiting or len(pool):
            if stopping is not None and stopping.is_set():
                break
            while waiting and len(pool) < limit:
                pool.start(waiting.popleft())
            for episode in pool.tick():
                done[episode.id] = episode.trajectory()
                if on_finished is not None:
                    on_finished(done[episode.id])
    finally:
        rest = pool.abort("stopped")
    for episode in waiting:
        episode.end(Status.ABORTED, "stopped before it began")
    done.update({episode.id: episode.trajectory() for episode in [*rest, *waiting]})
    return [done[name] for name in order]


def _episodes(tasks: Sequence[AgentTask], setting: Setting) -> list[Episode]:
    seen: Counter[str] = Counter()
    episodes = []
    for task in tasks:
        episodes.append(Episode(task, setting, sample=seen[task.id]))
        seen[task.id] += 1
    return episodes
