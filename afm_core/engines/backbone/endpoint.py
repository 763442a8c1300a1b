"""One OpenAI-compatible server: sends a body, gives back how that ended. It never raises for what a server does."""

import asyncio
import os
from dataclasses import dataclass
from typing import Any

import httpx

from afm_core.config import ConfigError, EndpointConfig
from afm_core.engines.backbone.limits import Limits
from afm_core.engines.backbone.messages import CallStatus, ChatReply
from afm_core.engines.backbone.reading import MalformedReply, detail_of, read_reply, retry_after, status_of

CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Outcome:
    """How one attempt ended. `pause`: seconds that the server asked to be left alone for."""

    status: CallStatus
    reply: ChatReply | None = None
    http_status: int | None = None
    detail: str = ""
    pause: float | None = None


def endpoint_key(config: EndpointConfig) -> str:
    """The endpoint's key from the environment, "" if it needs none. Raises ConfigError if its variable is not set."""
    key = os.environ.get(config.key_variable, "") if config.key_variable else ""
    if config.key_variable and not key:
        raise ConfigError(
            f"endpoint {config.name}: its key is to come from ${config.key_variable}, which is not set here"
        )
    return key


class Endpoint:
    """A configured server with its limits. Raises ConfigError if its key's variable is not set."""

    def __init__(self, config: EndpointConfig, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.config = config
        self.limits = Limits(config)
        self._key = endpoint_key(config)
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),  # the whole reply is timed below
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=config.concurrency),
            transport=transport,
        )
        self._url = f"{config.base_url.rstrip('/')}/chat/completions"

    async def send(self, body: dict[str, Any]) -> Outcome:
        """Send once and wait for the whole reply."""
        try:
            async with asyncio.timeout(self.config.timeout_seconds):
                reply = await self._client.post(self._url, json=body)
        except TimeoutError:
            return Outcome(CallStatus.TIMEOUT, detail=f"no reply within {self.config.timeout_seconds:g} s")
        except httpx.TimeoutException as error:
            return Outcome(CallStatus.UNREACHABLE, detail=f"no connection: {type(error).__name__}")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return Outcome(CallStatus.UNREACHABLE, detail=self._hide(f"{type(error).__name__}: {error}"))
        return self._read(reply)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def price(self, reply: ChatReply) -> float:
        """What a reply cost here."""
        tokens = reply.tokens
        return (tokens.prompt * self.config.price_prompt + tokens.completion * self.config.price_completion) / 1e6

    def _read(self, reply: httpx.Response) -> Outcome:
        status = status_of(reply)
        if status is not CallStatus.OK:
            pause = retry_after(reply) if status in {CallStatus.RATE_LIMITED, CallStatus.SERVER_ERROR} else None
            return Outcome(status, None, reply.status_code, self._hide(detail_of(reply)), pause)
        try:
            status, read = read_reply(reply.text)
        except MalformedReply as error:
            return Outcome(CallStatus.MALFORMED, None, reply.status_code, self._hide(str(error)))
        return Outcome(status, read, reply.status_code)

    def _hide(self, text: str) -> str:
        """A server may repeat the key in its error; no record may hold it."""
        return text.replace(self._key, "[key]") if self._key else text
