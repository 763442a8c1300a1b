"""An event loop whose clock jumps to the next timer instead of waiting: hours of pauses pass in milliseconds.

While work runs in a thread (`asyncio.to_thread`) the clock stands, so that a fast tool takes no time at all.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.threads = 0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None or self.threads:
            return super().select(None)
        self.now += timeout
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop on virtual time, which begins at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(self, executor: Any, function: Any, *arguments: Any) -> Any:
        future = super().run_in_executor(executor, function, *arguments)
        self._jumping.threads += 1
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: object) -> None:
        self._jumping.threads -= 1


def run_virtually(main: Coroutine[Any, Any, ResultT]) -> tuple[ResultT, float]:
    """Run to the end; (result, virtual seconds that passed)."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        result = runner.run(main)
        return result, runner.get_loop().time()
