"""Several endpoints behind one call: in turn, within their limits, tried again where that may help.

A busy endpoint (429) rests as long as it asks, and its request goes on to another. Other passing failures are tried
again after a growing pause, away from the endpoint that failed where another is free. A request has `TRIES` attempts;
then its exchange ends with the status of the last one.

An outage is not a result: when `GIVE_UP` exchanges of a model in a row got nothing but time-outs, server errors and
refusals for want of room, BackboneGone is raised, so that the stage fails as infrastructure does and is tried again.
One event loop, no threads.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, Self

import httpx

from afm_core.config import ConfigError, EndpointConfig
from afm_core.engines.backbone.endpoint import Endpoint, Outcome
from afm_core.engines.backbone.line import Grant, Line
from afm_core.engines.backbone.messages import PASSING, Attempt, CallStatus, ChatRequest, Exchange

TRIES = 6
GIVE_UP = 8
_SILENCE = PASSING - {CallStatus.MALFORMED}
_LONGEST_BACKOFF = 30.0
_CHARACTERS_PER_TOKEN = 4
"""For the estimate that a rate in tokens reserves before a reply tells the truth."""


class BackboneGone(ConnectionError):
    """No endpoint of a model answers any more."""


class Backbone(Protocol):
    """What answers chat requests: a pool of servers, or the record of an earlier run."""

    async def complete(self, request: ChatRequest) -> Exchange:
        """Ask, and come back with how that ended."""
        ...


class BackbonePool:
    """The configured endpoints. Use as an asynchronous context manager.

    `transport` makes the HTTP transport of an endpoint (for tests); None is the network.

    Raises:
        ConfigError: an endpoint's key is to come from a variable that is not set.
    """

    def __init__(
        self,
        endpoints: Sequence[EndpointConfig],
        transport: Callable[[EndpointConfig], httpx.AsyncBaseTransport] | None = None,
    ) -> None:
        self._endpoints = [Endpoint(one, transport(one) if transport else None) for one in endpoints]
        self._lines: dict[str, Line] = {}
        for endpoint in self._endpoints:
            model = endpoint.config.model
            self._lines.setdefault(model, Line(model)).endpoints.append(endpoint)
        self._counts: Counter[str] = Counter()
        self._cost: Counter[str] = Counter()
        self._jitter = random.Random()  # of pauses, never of results

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for endpoint in self._endpoints:
            await endpoint.close()

    async def complete(self, request: ChatRequest) -> Exchange:
        """Ask once its turn comes, and again where that may help.

        Raises:
            ConfigError: no endpoint serves the model, or all of them refuse the key or the model.
            BackboneGone: the model's endpoints are away.
        """
        line = self._lines.get(request.model)
        if line is None:
            raise ConfigError(f"no endpoint serves {request.model!r}; served: {', '.join(self._lines) or 'none'}")
        attempts: list[Attempt] = []
        while True:
            avoid = attempts[-1].endpoint if attempts else ""
            attempt, outcome, cost = await self._attempt(line, request, avoid)
            attempts.append(attempt)
            if outcome.status is CallStatus.UNAUTHORIZED:
                continue  # that endpoint is closed now; the line refuses when it was the last
            if outcome.status not in PASSING or len(attempts) >= TRIES:
                break
            if outcome.pause is None:
                await asyncio.sleep(self._backoff(len(attempts)))
        _give_up_if_silent(line, attempts)
        return Exchange(
            request=request, status=outcome.status, reply=outcome.reply, cost=cost, attempts=tuple(attempts)
        )

    def figures(self) -> dict[str, float | int]:
        """Counts so far: attempts by endpoint and status, tokens and money by endpoint."""
        money = {name: round(cost, 6) for name, cost in self._cost.items()}
        return dict(sorted({**self._counts, **money}.items()))

    async def _attempt(self, line: Line, request: ChatRequest, avoid: str) -> tuple[Attempt, Outcome, float]:
        """Wait for an endpoint, send, learn from how that ended. Returns the attempt, its outcome and its cost."""
        clock = asyncio.get_running_loop().time
        asked = clock()
        grant = await line.acquire(_expected_tokens(request), avoid)
        began, outcome = clock(), None
        try:
            outcome = await grant.endpoint.send(request.body())
            _learn(grant, outcome, clock())
        finally:
            line.release(grant, _tokens_of(outcome))
        cost = grant.endpoint.price(outcome.reply) if outcome.reply is not None else 0.0
        self._account(grant.endpoint.config.name, outcome, cost)
        attempt = Attempt(
            endpoint=grant.endpoint.config.name,
            status=outcome.status,
            http_status=outcome.http_status,
            seconds=round(clock() - began, 4),
            waited=round(began - asked, 4),
            detail=outcome.detail,
        )
        return attempt, outcome, cost

    def _account(self, name: str, outcome: Outcome, cost: float) -> None:
        self._counts[f"attempts/{name}/{outcome.status}"] += 1
        if outcome.reply is not None:
            self._counts[f"prompt_tokens/{name}"] += outcome.reply.tokens.prompt
            self._counts[f"completion_tokens/{name}"] += outcome.reply.tokens.completion
            self._cost[f"cost/{name}"] += cost  # type: ignore[assignment]

    def _backoff(self, failures: int) -> float:
        """Seconds before another attempt: 0.5, 1, 2, ... with jitter, so that many do not come back together."""
        return min(2.0 ** (failures - 2), _LONGEST_BACKOFF) * self._jitter.uniform(0.5, 1.0)


def _learn(grant: Grant, outcome: Outcome, now: float) -> None:
    limits = grant.endpoint.limits
    if outcome.status is CallStatus.UNAUTHORIZED:
        limits.closed = f"HTTP {outcome.http_status}: {outcome.detail}"
    elif outcome.status in PASSING and outcome.status is not CallStatus.MALFORMED:
        limits.failed(now, outcome.pause)
    else:
        limits.succeeded()


def _give_up_if_silent(line: Line, attempts: Sequence[Attempt]) -> None:
    line.silent = line.silent + 1 if all(one.status in _SILENCE for one in attempts) else 0
    if line.silent >= GIVE_UP:
        last = attempts[-1]
        raise BackboneGone(f"no endpoint of {line.model!r} answers any more; the last, {last.endpoint}: {last.detail}")


def _expected_tokens(request: ChatRequest) -> int:
    characters = sum(len(one.content) for one in request.messages)
    return characters // _CHARACTERS_PER_TOKEN + request.sampling.max_tokens


def _tokens_of(outcome: Outcome | None) -> int | None:
    """What a request took; None where the server does not say: the estimate stands."""
    if outcome is None or outcome.reply is None:
        return None
    return (outcome.reply.tokens.prompt + outcome.reply.tokens.completion) or None
