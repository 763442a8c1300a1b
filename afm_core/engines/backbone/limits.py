"""When an endpoint may be asked next: its requests in flight, its two rates a minute, and the pauses it asks for.

Rates are sliding windows: what was spent in the last sixty seconds. Tokens are not known before the reply, so that a
request reserves an estimate, which its reply corrects. Times are those of the event loop's clock, in seconds.
"""

from collections import deque
from dataclasses import dataclass, field

from afm_core.config import EndpointConfig

WINDOW_SECONDS = 60.0
FAILURES_BEFORE_PAUSE = 3
"""Failures in a row after which an endpoint rests, so that others are asked instead."""
LONGEST_PAUSE = 60.0


@dataclass
class Spent:
    """One request of the window. `tokens` is an estimate until the reply is there."""

    at: float
    tokens: int


@dataclass
class Limits:
    """The state of one endpoint."""

    config: EndpointConfig
    in_flight: int = 0
    failures: int = 0
    closed: str = ""
    """Why it is not asked any more; empty while it is."""
    _paused_until: float = 0.0
    _window: deque[Spent] = field(default_factory=deque)

    def free(self) -> bool:
        """Whether it takes one more request at once, rates aside."""
        return not self.closed and self.in_flight < self.config.concurrency

    def ready_at(self, now: float, tokens: int) -> float:
        """The time from which a request of about `tokens` may be sent (`now` or earlier: at once)."""
        while self._window and self._window[0].at <= now - WINDOW_SECONDS:
            self._window.popleft()
        return max(self._paused_until, self._requests_ready(), self._tokens_ready(tokens))

    def begin(self, now: float, tokens: int) -> Spent:
        """Count a request that is being sent; give what is returned back to `end`."""
        spent = Spent(now, tokens)
        self._window.append(spent)
        self.in_flight += 1
        return spent

    def end(self, spent: Spent, tokens: int | None) -> None:
        """The request is over; `tokens` is what it really took, None if that is not known."""
        self.in_flight -= 1
        if tokens is not None:
            spent.tokens = tokens

    def succeeded(self) -> None:
        """A usable reply: failures are forgotten."""
        self.failures = 0

    def failed(self, now: float, pause: float | None) -> None:
        """Rest for `pause` seconds, if the server asked for it; else longer and longer after failures in a row."""
        self.failures += 1
        if pause is None and self.failures >= FAILURES_BEFORE_PAUSE:
            pause = min(2.0 ** (self.failures - FAILURES_BEFORE_PAUSE), LONGEST_PAUSE)
        if pause is not None:
            self._paused_until = max(self._paused_until, now + pause)

    def _requests_ready(self) -> float:
        limit = self.config.requests_per_minute
        if not limit or len(self._window) < limit:
            return 0.0
        return self._window[len(self._window) - limit].at + WINDOW_SECONDS

    def _tokens_ready(self, tokens: int) -> float:
        """When enough of the window has passed. A request larger than the whole limit waits for an empty window."""
        limit = self.config.tokens_per_minute
        over = sum(one.tokens for one in self._window) + min(tokens, limit) - limit
        if not limit or over <= 0:
            return 0.0
        for one in self._window:
            over -= one.tokens
            if over <= 0:
                return one.at + WINDOW_SECONDS
        return self._window[-1].at + WINDOW_SECONDS
