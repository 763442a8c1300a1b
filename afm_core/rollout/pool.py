"""Many episodes in flight over one engine, their tools in threads.

One loop: hand results and new episodes to the engine, step it, read what finished, start the calls it asks for. Each
call runs in a daemon thread of its own, so a tool that hangs can hold neither the loop nor the end of the process.
An exception inside one episode ends that episode as aborted, with its error; the others go on. An exception of the
engine ends the rollout. If nothing finishes for `stall_seconds` the loop raises RolloutStalled with a dump.

`pause` holds episodes at the end of their running turn, so that weights can be replaced between turns; a turn's segment
carries the version that sampled it.

Deterministic scheduling waits for all calls of a step before the next engine step, in a fixed order, so that two runs
submit the same requests in the same order. Without it a finished call goes back to the engine at once.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial

from afm_core.data import Status
from afm_core.engines import Engine, Generation, GenerationRequest
from afm_core.rollout.episode import Episode
from afm_core.rollout.reading import ToolCall
from afm_core.tools.protocol import Tool, ToolResult, ToolStatus

_POLL_SECONDS = 0.05


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
        self._held: list[Episode] = []
        self._asked: dict[str, Generation | None] = {}
        self._finished: list[Episode] = []
        self._paused = False
        self._advanced = time.monotonic()

    def __len__(self) -> int:
        return len(self._generating) + len(self._calling) + len(self._held)

    @property
    def idle_seconds(self) -> float:
        """Since something last advanced; 0 while there is nothing to do."""
        return time.monotonic() - self._advanced if len(self) else 0.0

    def start(self, episode: Episode) -> None:
        """Begin an episode; its end comes from `tick`."""
        self._guard(episode, self._submit)

    def tick(self) -> list[Episode]:
        """One turn of the loop; returns the episodes that ended. Raises RolloutStalled, or what the engine raises."""
        self._collect()
        self._expire()
        if self._engine.pending():
            for generation in self._engine.step():
                if generation.request_id in self._asked:
                    self._asked[generation.request_id] = generation
                episode = self._generating.pop(generation.request_id, None)
                if episode is not None:
                    self._guard(episode, partial(self._receive, generation))
        finished, self._finished = self._finished, []
        if finished:
            self._advanced = time.monotonic()
        elif self.idle_seconds > self._stall_seconds:
            raise RolloutStalled(f"nothing advanced for {self._stall_seconds:.0f} s\n{self.dump()}")
        return finished

    def pause(self) -> list[Episode]:
        """Let running turns finish and hold every episode there; returns those that ended. Tools go on."""
        self._paused = True
        ended = []
        while self._generating:
            ended += self.tick()
        return ended

    def resume(self) -> None:
        """Let the held episodes go on, in the order in which they were held."""
        self._paused = False
        self._advanced = time.monotonic()
        held, self._held = self._held, []
        for episode in held:
            self._guard(episode, self._submit)

    def ask(self, request: GenerationRequest) -> None:
        """Submit a request of no episode; its generation comes from `answer`. Raises ValueError as the engine does."""
        self._engine.submit(request)
        self._asked[request.id] = None

    def answer(self, name: str) -> Generation | None:
        """What an asked request produced, once; None: `tick` on. Raises RuntimeError if the engine lost it."""
        if self._asked[name] is None and not self._engine.pending():
            raise RuntimeError(f"the engine never answered request {name}")
        return self._asked.pop(name) if self._asked[name] is not None else None

    def partial_text(self, episode: Episode) -> str:
        """What the episode's running turn has produced so far, if the engine can tell."""
        look = getattr(self._engine, "partial_text", None)
        return str(look(f"{episode.id}/{episode.turns}")) if look is not None else ""

    def cancel(self, episode: Episode, reason: str) -> None:
        """End one live episode as aborted; the next `tick` returns it."""
        live = [one for one in self._generating.items() if one[1] is episode]
        for name, _ in live:
            del self._generating[name]
        held = episode in self._held
        if held:
            self._held.remove(episode)
        if live or held or self._calling.pop(episode.id, None) is not None:
            self._end(episode, Status.ABORTED, reason)

    def abort(self, reason: str) -> list[Episode]:
        """End everything that lives as aborted."""
        live = [*self._generating.values(), *(episode for episode, _ in self._calling.values()), *self._held]
        self._generating.clear()
        self._calling.clear()
        self._held.clear()
        for episode in live:
            self._end(episode, Status.ABORTED, reason)
        finished, self._finished = self._finished, []
        return finished

    def dump(self) -> str:
        """Every live episode and every thread's stack, for people."""
        lines = [f"engine: {self._engine.pending()} requests pending"]
        lines += [f"episode {e.id} (task {e.task.id}): turn {e.turns}, generating" for e in self._generating.values()]
        lines += [f"episode {e.id} (task {e.task.id}): turn {e.turns}, in a tool" for e, _ in self._calling.values()]
        lines += [f"episode {e.id} (task {e.task.id}): turn {e.turns}, held" for e in self._held]
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            lines.append(f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame, limit=12))}")
        return "\n".join(lines)

    def _submit(self, episode: Episode) -> None:
        if self._paused:
            self._held.append(episode)
            return
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
        self._take(episode, episode.receive(generation, self._engine.policy_version))

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
        for episode in [one for one in self._held if now >= one.deadline]:
            self._held.remove(episode)
            self._end(episode, Status.TIMEOUT, "")

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
