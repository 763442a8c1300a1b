"""Many episodes in flight over one engine, their tools in threads.

One loop: hand results and new episodes to the engine, step it, read what finished, start the calls it asks for. Each
call runs in a daemon thread of its own, so a tool that hangs can hold neither the loop nor the end of the process.
An exception inside one episode ends that episode as aborted, with its error; the others go on. An exception of the
engine ends the rollout. If nothing finishes for `stall_seconds` the loop raises RolloutStalled with a dump.

Deterministic scheduling waits for all calls of a step before the next engine step, in a fixed order, so that two runs
submit the same requests in the same order. Without it a finished call goes back to the engine at once.
"""

import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial

from afm_core.config import AgentConfig
from afm_core.data import AgentTask, Status, Tag, Trajectory
from afm_core.engines import Engine, Generation
from afm_core.rollout.episode import Episode, Mode, Setting
from afm_core.rollout.reading import ToolCall
from afm_core.tools.protocol import Tool, ToolResult, ToolStatus

_POLL_SECONDS = 0.05
_DEFAULT_CONCURRENCY = 32


class RolloutStalled(RuntimeError):
    """Nothing advanced for too long; the message holds every live episode and every thread's stack."""


class EpisodePool:
    """Live episodes and the loop's single turn, `tick`. Not thread-safe."""

    def __init__(self, engine: Engine, *, deterministic: bool = True, stall_seconds: float = 600.0) -> None:
        self._engine = engine
        self._deterministic = deterministic
        self._stall_seconds = stall_seconds
        self._generating: dict[str, Episode] = {}
        self._calling: dict[str, tuple[Episode, Future[ToolResult]]] = {}
        self._finished: list[Episode] = []
        self._advanced = time.monotonic()

    def __len__(self) -> int:
        return len(self._generating) + len(self._calling)

    def start(self, episode: Episode) -> None:
        """Begin an episode; its end comes from `tick`."""
        self._guard(episode, self._submit)

    def tick(self) -> list[Episode]:
        """One turn of the loop; returns the episodes that ended. Raises RolloutStalled, or what the engine raises."""
        self._collect()
        self._expire()
        if self._engine.pending():
            for generation in self._engine.step():
                episode = self._generating.pop(generation.request_id, None)
                if episode is not None:
                    self._guard(episode, partial(self._receive, generation))
        finished, self._finished = self._finished, []
        if finished:
            self._advanced = time.monotonic()
        elif len(self) and time.monotonic() - self._advanced > self._stall_seconds:
            raise RolloutStalled(f"nothing advanced for {self._stall_seconds:.0f} s\n{self.dump()}")
        return finished

    def partial_text(self, episode: Episode) -> str:
        """What the episode's running turn has produced so far, if the engine can tell."""
        look = getattr(self._engine, "partial_text", None)
        return str(look(f"{episode.id}/{episode.turns}")) if look is not None else ""

    def cancel(self, episode: Episode, reason: str) -> None:
        """End one live episode as aborted; the next `tick` returns it."""
        live = [one for one in self._generating.items() if one[1] is episode]
        for name, _ in live:
            del self._generating[name]
        if live or self._calling.pop(episode.id, None) is not None:
            self._end(episode, Status.ABORTED, reason)

    def abort(self, reason: str) -> list[Episode]:
        """End everything that lives as aborted."""
        live = [*self._generating.values(), *(episode for episode, _ in self._calling.values())]
        self._generating.clear()
        self._calling.clear()
        for episode in live:
            self._end(episode, Status.ABORTED, reason)
        finished, self._finished = self._finished, []
        return finished

    def dump(self) -> str:
        """Every live episode and every thread's stack, for people."""
        lines = [f"engine: {self._engine.pending()} requests pending"]
        lines += [f"episode {e.id} (task {e.task.id}): turn {e.turns}, generating" for e in self._generating.values()]
        lines += [f"episode {e.id} (task {e.task.id}): turn {e.turns}, in a tool" for e, _ in self._calling.values()]
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            lines.append(f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame, limit=12))}")
        return "\n".join(lines)

    def _submit(self, episode: Episode) -> None:
        request = episode.next_request()
        if request is None:
            self._close(episode)
            return
        self._engine.submit(request)
        self._generating[request.id] = episode
        self._advanced = time.monotonic()

    def _take(self, episode: Episode, call: ToolCall | None) -> None:
        """After a turn: start its call, go on, or close."""
        self._advanced = time.monotonic()
        if call is not None:
            self._calling[episode.id] = (episode, _in_thread(episode.setting.tools[call.tag], call.argument))
        elif episode.status is None:
            self._submit(episode)
        else:
            self._close(episode)

    def _collect(self) -> None:
        """Give results back: all of them in order if deterministic, else those that are there."""
        if not self._calling:
            return
        futures = [future for _, future in self._calling.values()]
        if self._deterministic:
            soonest = min(episode.deadline for episode, _ in self._calling.values())
            wait(futures, timeout=max(0.0, min(soonest - time.monotonic(), self._stall_seconds)))
        elif not self._engine.pending():
            wait(futures, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
        for name, (episode, future) in list(self._calling.items()):
            if future.done():
                del self._calling[name]
                self._guard(episode, partial(self._observe, future.result()))

    def _receive(self, generation: Generation, episode: Episode) -> None:
        self._take(episode, episode.receive(generation))

    def _observe(self, result: ToolResult, episode: Episode) -> None:
        episode.observe(result)
        self._take(episode, None)

    def _expire(self) -> None:
        """End episodes whose wall-clock budget is over, in the engine or in a tool."""
        now = time.monotonic()
        for name, episode in list(self._generating.items()):
            if now >= episode.deadline:
                del self._generating[name]
                self._end(episode, Status.TIMEOUT, "")
        for name, (episode, _) in list(self._calling.items()):
            if now >= episode.deadline:
                del self._calling[name]
                self._end(episode, Status.TIMEOUT, "the tool had not answered")

    def _guard(self, episode: Episode, action: Callable[[Episode], None]) -> None:
        try:
            action(episode)
        except Exception as error:  # noqa: BLE001 - recorded: this episode is aborted, the others go on
            self._end(episode, Status.ABORTED, "".join(traceback.format_exception_only(error)).strip())

    def _end(self, episode: Episode, status: Status, error: str) -> None:
        if episode.status is None:
            episode.end(status, error)
        self._close(episode)

    def _close(self, episode: Episode) -> None:
        self._engine.release(episode.id)
        self._finished.append(episode)


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
    limit = concurrency or int(getattr(engine, "slots", _DEFAULT_CONCURRENCY))
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


def _in_thread(tool: Tool, argument: str) -> "Future[ToolResult]":
    """Call a tool in a daemon thread. A tool that raises is an infrastructure failure."""
    future: Future[ToolResult] = Future()

    def work() -> None:
        try:
            future.set_result(tool.call(argument))
        except Exception as error:  # noqa: BLE001 - recorded: the episode ends as tool_error
            message = f"{tool.name} raised {type(error).__name__}: {error}"
            future.set_result(ToolResult(ToolStatus.INFRA_ERROR, message))

    threading.Thread(target=work, name=f"tool-{tool.name}", daemon=True).start()
    return future
