"""The servers of language models that teachers and judges ask.

Keys are never configuration: `key_variable` names the environment variable that holds one.
"""

from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from afm_core.config.base import Positive, Section


class EndpointConfig(Section):
    """One OpenAI-compatible server. Several that serve the same `model` share its requests in turn.

    `concurrency`: requests in flight; the two rates are per minute, 0 for no limit. `timeout_seconds` bounds one whole
    reply. Prices are per million tokens, in whatever currency `execution` has.
    """

    name: str = Field(min_length=1)
    base_url: str
    model: str = Field(min_length=1)
    key_variable: str = ""
    concurrency: Positive = 8
    requests_per_minute: int = Field(default=0, ge=0)
    tokens_per_minute: int = Field(default=0, ge=0)
    timeout_seconds: float = Field(default=300.0, gt=0)
    price_prompt: float = Field(default=0.0, ge=0)
    price_completion: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _address(self) -> Self:
        parts = urlsplit(self.base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"base_url {self.base_url!r} is no http address such as http://127.0.0.1:8000/v1")
        if parts.username or parts.password:
            raise ValueError("base_url must hold no credentials: put the key into the variable of key_variable")
        return self
