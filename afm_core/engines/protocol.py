"""One protocol for everything that generates tokens: submit requests, step, take what finished.

A step-wise protocol (and not one blocking call a request) because an agent's turns are ragged: a pool keeps many
episodes in flight, runs their tools between steps, and can be made deterministic by submitting in a fixed order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """A stop string was completed; the token that completed it is kept whole."""
    END = "end"
    """The model's end-of-turn token was sampled (it is the last of token_ids)."""
    LENGTH = "length"
    """max_new_tokens or the engine's context was reached."""
    ERROR = "error"
    """The engine failed on this request; `error` says why."""


@dataclass(frozen=True)
class GenerationRequest:
    """One generation: everything the model sees as ids, and how to sample.

    `session` names an episode: an engine may keep its key-value cache between turns (prompt_ids then extends the
    previous turn's ids). temperature 0 is greedy. The same seed and prompt give the same tokens on one engine.
    """

    id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    seed: int = 0
    session: str | None = None


@dataclass(frozen=True)
class Generation:
    """What was sampled. text is the decoded token_ids, special tokens excluded; len(token_ids) == len(logprobs)."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish: FinishReason
    stop: str | None = None
    """The stop string that ended it; characters of `text` after it are the overhang."""
    error: str = ""


class Engine(Protocol):
    """Generates tokens for one model at a time.

    An engine may also offer `partial_text(request_id) -> str`, what a running request has produced so far (for live
    display), and `slots`, how many sessions it serves well at once. For training it may offer
    `load_state(state, policy_version, lent)`, new weights straight from tensors of this process (lent: they stay
    unchanged until the engine rests, and need no copy), `rest()`, which frees weights and caches until the next load,
    and `weights_digest`, which weights were loaded last (see afm_core.engines.weights; "" if it does not know).
    """

    tokenizer: Any
    """transformers.PreTrainedTokenizerFast of the model."""
    max_length: int
    policy_version: str
    """Digest of the weights in use."""

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request. Raises ValueError if it cannot fit max_length."""
        ...

    def step(self) -> Sequence[Generation]:
        """Advance all requests by at least one token; return those that finished. Empty queue: returns at once."""
        ...

    def pending(self) -> int:
        """Requests submitted and not yet returned."""
        ...

    def release(self, session: str) -> None:
        """Drop what is kept for a session; its pending requests are cancelled and never returned."""
        ...

    def load_weights(self, directory: Path, policy_version: str) -> None:
        """Replace the weights; every cache is emptied. No request may be pending."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...
