"""Any server with an OpenAI-compatible `/completions` that takes and returns token ids (vLLM does).

Prompts are sent as ids. A server that returns no ids is refused, request by request: its text cannot be spliced into a
trajectory without encoding it again, which must never be trained on. Log-probabilities are what the server reports; a
vLLM server reports them at temperature 1 unless it was started with `--logprobs-mode processed_logprobs`.

The key comes from $AFM_ENGINE_API_KEY or $OPENAI_API_KEY. Rate limits and failures of the server are tried again, with
its Retry-After if it sends one, else with back-off and jitter.
"""

import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx

from afm_core.config import ConfigError, EngineConfig
from afm_core.engines.detokenize import decode
from afm_core.engines.protocol import FinishReason, Generation, GenerationRequest
from afm_core.engines.requests import check_request

_TRIES = 6
_LONGEST_WAIT_SECONDS = 60.0
_STEP_SECONDS = 0.5
_TIMEOUT = httpx.Timeout(600.0, connect=10.0)


class OpenAIEngine:
    """An engine behind HTTP. Raises ConfigError without `engine.base_url`, or if the tokenizer is missing."""

    def __init__(
        self,
        config: EngineConfig,
        model_directory: Path,
        policy_version: str,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not config.base_url:
            raise ConfigError("engine.kind is 'openai': set engine.base_url, e.g. http://127.0.0.1:8000/v1")
        from transformers import AutoTokenizer

        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(model_directory)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{model_directory} holds no tokenizer of the served model: {error}") from error
        self.max_length = config.max_length
        self.slots = config.slots
        self.policy_version = policy_version
        key = os.environ.get("AFM_ENGINE_API_KEY") or os.environ.get("OPENAI_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(base_url=config.base_url, headers=headers, timeout=_TIMEOUT, transport=transport)
        self._model = config.model
        self._sleep = sleep
        self._threads = ThreadPoolExecutor(config.slots, thread_name_prefix="openai-engine")
        self._running: dict[str, tuple[GenerationRequest, Future[Generation]]] = {}

    def submit(self, request: GenerationRequest) -> None:
        """Send a request. Raises ValueError if it is malformed or cannot fit max_length."""
        check_request(request, self.max_length, len(self.tokenizer))
        if request.id in self._running:
            raise ValueError(f"request {request.id!r} is already pending")
        self._running[request.id] = (request, self._threads.submit(self._complete, request))

    def pending(self) -> int:
        """Requests submitted and not yet returned."""
        return len(self._running)

    def step(self) -> Sequence[Generation]:
        """Wait a moment for answers; those that are there, in the order of submission."""
        if not self._running:
            return []
        wait([future for _, future in self._running.values()], _STEP_SECONDS, FIRST_COMPLETED)
        finished = [name for name, (_, future) in self._running.items() if future.done()]
        return [self._running.pop(name)[1].result() for name in finished]

    def release(self, session: str) -> None:
        """Forget the session's pending requests; an answer that still comes is dropped."""
        for name, (request, future) in list(self._running.items()):
            if request.session == session:
                future.cancel()
                del self._running[name]

    def load_weights(self, directory: Path, policy_version: str) -> None:
        """Not possible over this interface. Raises ConfigError."""
        raise ConfigError("the openai engine cannot load weights: use engine.kind transformers or vllm for training")

    def close(self) -> None:
        """Close connections; waits for no answer."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _complete(self, request: GenerationRequest) -> Generation:
        body = {
            "model": self._model,
            "prompt": list(request.prompt_ids),
            "max_tokens": min(request.max_new_tokens, self.max_length - len(request.prompt_ids)),
            "temperature": request.temperature,
            "seed": request.seed,
            "stop": list(request.stop),
            "logprobs": 0,
            "return_token_ids": True,
            "include_stop_str_in_output": True,
        }
        try:
            return self._read(request, self._post(body))
        except (httpx.HTTPError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            return _failed(request, f"{type(error).__name__}: {error}")

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        """The reply, tried again while the server is busy or away. Raises the last failure."""
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            try:
                reply = self._client.post("completions", json=body)
            except httpx.TransportError:
                if last:
                    raise
                self._sleep(_pause(attempt, None))
                continue
            if not last and (reply.status_code == 429 or reply.status_code >= 500):
                self._sleep(_pause(attempt, reply.headers.get("retry-after")))
                continue
            if reply.is_error:
                raise ValueError(f"the server answered {reply.status_code}: {reply.text[:500]}")
            document: dict[str, Any] = reply.json()
            return document
        raise AssertionError("unreachable")

    def _read(self, request: GenerationRequest, reply: dict[str, Any]) -> Generation:
        choice = reply["choices"][0]
        ids = choice.get("token_ids")
        if ids is None:
            return _failed(
                request,
                "the server returned no token ids (vLLM does, with return_token_ids); text alone cannot be used: "
                "encoding it again would not give the ids that were sampled",
            )
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
        if len(logprobs) != len(ids):
            return _failed(request, f"{len(ids)} token ids but {len(logprobs)} log-probabilities")
        text = decode(self.tokenizer, ids)
        stop = choice.get("stop_reason")
        finish = FinishReason.LENGTH if choice["finish_reason"] == "length" else FinishReason.END
        if finish is FinishReason.END and isinstance(stop, str):
            finish = FinishReason.STOP
        return Generation(
            request.id,
            tuple(map(int, ids)),
            tuple(map(float, logprobs)),
            text,
            finish,
            stop if finish is FinishReason.STOP else None,
        )


def _failed(request: GenerationRequest, message: str) -> Generation:
    return Generation(request.id, (), (), "", FinishReason.ERROR, error=message)


def _pause(attempt: int, retry_after: str | None) -> float:
    """Seconds to wait: what the server asks for, else 1, 2, 4, ... with jitter; never longer than a minute."""
    if retry_after is not None and retry_after.strip().isdigit():
        return min(float(retry_after), _LONGEST_WAIT_SECONDS)
    return min(2.0**attempt, _LONGEST_WAIT_SECONDS) * random.uniform(0.5, 1.0)
