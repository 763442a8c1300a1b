"""The line of one model: who waits for its endpoints, first come first served, and which endpoint is next.

A grant holds a place at an endpoint from the moment it is handed out, so that two who wake together never share one.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from afm_core.config import ConfigError
from afm_core.engines.backbone.endpoint import Endpoint
from afm_core.engines.backbone.limits import Spent


@dataclass(frozen=True)
class Grant:
    """A place at an endpoint; give it back with `Line.release`."""

    endpoint: Endpoint
    spent: Spent


@dataclass(frozen=True)
class _Waiter:
    future: asyncio.Future[Grant]
    tokens: int
    avoid: str


@dataclass
class Line:
    """The endpoints of one model. `silent` counts exchanges in a row that got no reply at all."""

    model: str
    endpoints: list[Endpoint] = field(default_factory=list)
    silent: int = 0
    _waiting: deque[_Waiter] = field(default_factory=deque)
    _turn: int = 0
    _alarm: asyncio.TimerHandle | None = None

    async def acquire(self, tokens: int, avoid: str = "") -> Grant:
        """Wait for a place for a request of about `tokens`, rather not at the endpoint `avoid`.

        Raises:
            ConfigError: every endpoint has refused its key or the model.
        """
        future: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiter(future, tokens, avoid))
        self._serve()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # granted and cancelled at once
                self.release(future.result(), 0)
            raise

    def release(self, grant: Grant, tokens: int | None) -> None:
        """The place is free again; `tokens` is what the request took, None if that is not known."""
        grant.endpoint.limits.end(grant.spent, tokens)
        self._serve()

    def _serve(self) -> None:
        """Hand out places in the order of asking; come back when a rate or a rest is over."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        loop = asyncio.get_running_loop()
        while self._waiting:
            first = self._waiting[0]
            if first.future.done():  # cancelled
                self._waiting.popleft()
                continue
            free = [one for one in self._in_turn() if one.limits.free()]
            if not free:
                if all(one.limits.closed for one in self.endpoints):
                    self._refuse_all()
                return
            now = loop.time()
            ready = [one for one in free if one.limits.ready_at(now, first.tokens) <= now]
            if not ready:
                soonest = min(one.limits.ready_at(now, first.tokens) for one in free)
                self._alarm = loop.call_at(soonest, self._serve)
                return
            self._waiting.popleft()
            chosen = next((one for one in ready if one.config.name != first.avoid), ready[0])
            self._turn = self.endpoints.index(chosen) + 1
            first.future.set_result(Grant(chosen, chosen.limits.begin(now, first.tokens)))

    def _refuse_all(self) -> None:
        reasons = "; ".join(f"{one.config.name}: {one.limits.closed}" for one in self.endpoints)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(
                    ConfigError(
                        f"no endpoint of {self.model!r} accepts requests ({reasons}); check base_url, model and "
                        "the variable of its key"
                    )
                )

    def _in_turn(self) -> list[Endpoint]:
        start = self._turn % len(self.endpoints)
        return self.endpoints[start:] + self.endpoints[:start]
