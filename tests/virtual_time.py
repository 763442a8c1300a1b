"""An event loop whose clock jumps to the next timer instead of waiting: hours of pauses pass in milliseconds.

While a tool or an executor's function runs in a thread, the clock stands: they take no time at all.
"""

import asyncio
import selectors
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.executing = 0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if self.executing or any(one.name.startswith("tool-") for one in threading.enumerate()):
            return super().select(0.001)
        if timeout is None:
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
        self._jumping.executing += 1
        future.add_done_callback(self._executed)
        return future

    def _executed(self, _: object) -> None:
        self._jumping.executing -= 1


def run_virtually(main: Coroutine[Any, Any, ResultT]) -> tuple[ResultT, float]:
    """Run to the end; (result, virtual seconds that passed)."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        result = runner.run(main)
        return result, runner.get_loop().time()
