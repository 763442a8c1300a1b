"""What runs inside one Ray actor: an engine, tools, and a LocalSampler that a background thread keeps advancing.

Calls from outside are queued and carried out by that thread between two engine steps, so the engine is only ever
touched by the thread that built it. A failure of the engine ends the thread; every later call raises it.
"""

import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import psutil

from afm_core.config import AgentConfig, RolloutConfig
from afm_core.config.environment import lean_imports
from afm_core.data import Tag, Trajectory
from afm_core.engines import Engine
from afm_core.rollout.local import LocalSampler
from afm_core.tools.protocol import Tool

MakeEngine = Callable[[], Engine]
MakeTools = Callable[[], Mapping[Tag, Tool]]

_IDLE_SECONDS = 0.2


@dataclass(frozen=True)
class Memory:
    """Bytes: this process's proportional set size, and what its machine has available."""

    used: int
    available: int

    def __str__(self) -> str:
        return f"{self.used / 2**30:.2f} GiB in use, {self.available / 2**30:.2f} GiB available on its machine"


@dataclass(frozen=True)
class Report:
    """What a worker tells: episodes that ended, seconds since one advanced, and its memory."""

    ended: list[tuple[str, Trajectory]]
    idle_seconds: float
    memory: Memory


class RolloutWorker:
    """The actor. `make_engine` and `make_tools` are called in its process."""

    def __init__(
        self, make_engine: MakeEngine, make_tools: MakeTools, agent: AgentConfig, rollout: RolloutConfig
    ) -> None:
        self._make = (make_engine, make_tools, agent, rollout)
        self._commands: queue.Queue[tuple[Future[Any], Callable[[LocalSampler], Any]]] = queue.Queue()
        self._ended: list[tuple[str, Trajectory]] = []
        self._advanced: float | None = None
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        threading.Thread(target=self._run, name="rollout", daemon=True).start()

    def call(self, method: str, *arguments: Any) -> Any:
        """A method of the LocalSampler, or an attribute's value; also tells when the engine is ready."""

        def work(sampler: LocalSampler) -> Any:
            value = getattr(sampler, method)
            return value(*arguments) if callable(value) else value

        future: Future[Any] = Future()
        self._commands.put((future, work))
        if self._failure is not None:
            self._refuse()
        return future.result()

    def poll(self, seconds: float) -> Report:
        """Wait up to `seconds` for an episode to end; raises what ended the background thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._failure, timeout=seconds)
            if self._failure is not None:
                raise self._failure
            ended, self._ended = self._ended, []
            idle = 0.0 if self._advanced is None else time.monotonic() - self._advanced
            return Report(ended, idle, memory())

    def stacks(self) -> str:
        """Every thread's stack, for people; works while the engine hangs."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        frames = sys._current_frames().items()
        return "\n".join(
            f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame, limit=12))}"
            for ident, frame in frames
        )

    def pid(self) -> int:
        """The actor's process."""
        return os.getpid()

    def _run(self) -> None:
        try:
            make_engine, make_tools, agent, rollout = self._make
            with lean_imports():
                engine = make_engine()
            sampler = LocalSampler(
                engine,
                make_tools(),
                agent,
                deterministic=rollout.deterministic,
                stall_seconds=rollout.stall_seconds,
                simulated_tool_seconds=rollout.simulated_tool_seconds,
            )
            while True:
                self._obey(sampler)
                self._put(sampler.collect(0.0), sampler)
        except Exception as error:  # noqa: BLE001 - recorded: every call raises it
            traceback.print_exc()
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            self._refuse()

    def _obey(self, sampler: LocalSampler) -> None:
        """Carry out what was asked; wait a moment if there is nothing else to do."""
        busy = sampler.pending() and not sampler.paused
        try:
            future, work = self._commands.get(block=not busy, timeout=_IDLE_SECONDS)
        except queue.Empty:
            return
        try:
            future.set_result(work(sampler))
        except Exception as error:  # noqa: BLE001 - handed to the caller
            future.set_exception(error)

    def _put(self, ended: list[tuple[str, Trajectory]], sampler: LocalSampler) -> None:
        """Leave what ended for `poll`, and when something last advanced: a hanging engine comes here no more."""
        with self._changed:
            self._advanced = time.monotonic() - sampler.idle_seconds if sampler.pending() else None
            self._ended += ended
            if ended:
                self._changed.notify_all()

    def _refuse(self) -> None:
        """Tell everyone who still waits for an answer."""
        assert self._failure is not None
        while True:
            try:
                future, _ = self._commands.get_nowait()
            except queue.Empty:
                return
            future.set_exception(self._failure)


def memory() -> Memory:
    """Of this process and its machine."""
    return Memory(psutil.Process(os.getpid()).memory_full_info().pss, psutil.virtual_memory().available)
