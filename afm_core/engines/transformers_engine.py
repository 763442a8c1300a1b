"""Continuous batching on a Hugging Face causal language model, written for few cores and many short turns.

A step is one forward pass over a flat sequence: one token of every decoding request and up to `PREFILL_TOKENS` prompt
tokens of the others. What it saves against `model.generate`: nothing is padded, keys and values are written in place
(afm_core.engines.slots), logits exist only for last positions, a session's next turn prefills only its new ids, equal
beginnings of prompts are computed once, and a finished request's row is refilled at the next step.

Ids are given and returned as they are: nothing is decoded and re-encoded. Log-probabilities: see
afm_core.engines.sampling. With the same order of calls two runs are bit-identical; who shares the batch changes a
result by float rounding only.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from afm_core.config import ConfigError, Dtype, EngineConfig
from afm_core.engines.detokenize import StopScanner, decode, end_ids
from afm_core.engines.packed import can_pack, pack_linears
from afm_core.engines.protocol import FinishReason, Generation, GenerationRequest
from afm_core.engines.requests import check_directory, check_request
from afm_core.engines.rows import Row, RowTable, common_prefix
from afm_core.engines.sampling import TokenStream, sample
from afm_core.engines.skeleton import check_state, fill, give_back_memory, skeleton
from afm_core.engines.slots import NAME, Chunk, SlotCache, StepPlan
from afm_core.engines.weights import directory_digest, weights_digest

PREFILL_TOKENS = 512
"""Prompt tokens of one step; bounds how long a decoding request waits."""
_WORTH_WAITING = 16
"""A prompt waits for another request to compute a common beginning that is at least this much longer."""


@dataclass
class _Running:
    """A request in a row. `sequence` is prompt and sampled ids; the row's ids are the cached beginning of it."""

    request: GenerationRequest
    row: Row
    sequence: list[int]
    stream: TokenStream
    scanner: StopScanner
    logprobs: list[float] = field(default_factory=list)
    started: bool = False

    @property
    def sampled(self) -> list[int]:
        return self.sequence[len(self.request.prompt_ids) :]

    @property
    def missing(self) -> int:
        return len(self.sequence) - len(self.row.ids)


class TransformersEngine:
    """The default engine. Not thread-safe; one engine a process (it sets torch's thread count).

    weights=False reads everything but the weights: `load_state` or `load_weights` must bring them. Raises ConfigError
    if the directory holds no model that this engine can run.
    """

    def __init__(
        self, config: EngineConfig, model_directory: Path, policy_version: str, *, weights: bool = True
    ) -> None:
        torch.set_num_threads(config.threads)
        self._config = config
        self._device = torch.device("cuda" if config.gpus else "cpu")
        self._dtype = torch.bfloat16 if config.dtype == Dtype.BF16 else torch.float32
        self._queue: deque[GenerationRequest] = deque()
        self._running: list[_Running] = []
        self.weights_digest = ""
        if weights:
            self._load(model_directory, policy_version)
        else:
            self._adopt(model_directory, policy_version, skeleton(check_directory(model_directory), self._dtype))
            self.rest()

    def _load(self, directory: Path, policy_version: str) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        model = AutoModelForCausalLM.from_pretrained(
            check_directory(directory), dtype=self._dtype, attn_implementation=NAME
        )
        self._adopt(directory, policy_version, model.to(self._device))
        if can_pack(self._device, self._dtype):
            pack_linears(self._model)

    def _adopt(self, directory: Path, policy_version: str, model: Any) -> None:
        """Take a model and what belongs to it; every cache is empty then."""
        from transformers import AutoTokenizer

        if not getattr(model, "_supports_attention_backend", False):
            name = type(model).__name__
            raise ConfigError(f"{name} does not use transformers' attention interface; use engine.kind vllm")
        self._directory = directory
        self.tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.max_length = min(self._config.max_length, limit or self._config.max_length)
        self._vocabulary = int(model.get_input_embeddings().num_embeddings)
        self._ends = end_ids(self.tokenizer, model.generation_config)
        self._use(model, policy_version)

    def _use(self, model: Any, policy_version: str) -> None:
        self._model: Any = model.eval() if model is not None else None
        self._rows = RowTable(self._config.slots)
        self._cache = SlotCache(self._config.slots, self.max_length, self._device)
        self.policy_version = policy_version

    @property
    def slots(self) -> int:
        """How many sessions keep their cache at once."""
        return self._config.slots

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request. Raises ValueError if it is malformed or cannot fit max_length, or while weights are out."""
        if self._model is None:
            raise ValueError("the engine has no weights: call load_state or load_weights first")
        check_request(request, self.max_length, self._vocabulary)
        if any(request.id == other.id for other in self._requests()):
            raise ValueError(f"request {request.id!r} is already pending")
        StopScanner(self.tokenizer, request.stop)
        self._queue.append(request)

    def pending(self) -> int:
        """Requests submitted and not yet returned."""
        return len(self._queue) + len(self._running)

    def partial_text(self, request_id: str) -> str:
        """What a running request has produced so far; empty if it is unknown or has not begun."""
        return next((r.scanner.text for r in self._running if r.request.id == request_id), "")

    @torch.inference_mode()
    def step(self) -> Sequence[Generation]:
        """One forward pass over everything that runs; returns the requests that finished, in order of admission."""
        self._admit()
        decode_now, chunks = self._schedule()
        if not decode_now and not chunks:
            return []
        self._forward(decode_now, chunks)
        finished = [(run, generation) for run in self._running if (generation := self._finished(run)) is not None]
        for run, _ in finished:
            self._running.remove(run)
            self._rows.finish(run.row)
        return [generation for _, generation in finished]

    def release(self, session: str) -> None:
        """Drop a session's row; its pending requests are cancelled and never returned."""
        self._queue = deque(request for request in self._queue if request.session != session)
        for run in [run for run in self._running if run.request.session == session]:
            self._running.remove(run)
            self._rows.finish(run.row)
        self._rows.release(session)

    def load_weights(self, directory: Path, policy_version: str) -> None:
        """Replace model, tokenizer and weights, empty every cache. Raises ValueError while a request is pending."""
        self.rest()
        self._load(directory, policy_version)
        self.weights_digest = directory_digest(directory)

    def load_state(self, state: Mapping[str, torch.Tensor], policy_version: str, *, lent: bool = False) -> None:
        """Replace the weights by tensors of this process, without a file; empty every cache.

        They are copied, unless they are lent: then the caller leaves them unchanged until `rest` or the next load.
        Raises ValueError while a request is pending, and for another model's names or shapes: nothing has changed then.
        """
        self._check_idle()
        model = skeleton(self._directory, self._dtype)
        check_state(model, state)
        self.rest()
        fill(model, state, self._device, self._dtype, pack=can_pack(self._device, self._dtype), lent=lent)
        self._use(model, policy_version)
        self.weights_digest = weights_digest(state)

    def rest(self) -> None:
        """Free weights and caches until the next load. Raises ValueError while a request is pending."""
        self._check_idle()
        self._use(None, self.policy_version)
        give_back_memory()

    def _check_idle(self) -> None:
        if self.pending():
            raise ValueError(f"cannot replace weights while {self.pending()} requests are pending")

    def close(self) -> None:
        """Free weights and caches; the engine is unusable afterwards."""
        self._queue.clear()
        self._running.clear()
        self.rest()

    def _requests(self) -> list[GenerationRequest]:
        return [*self._queue, *(run.request for run in self._running)]

    def _admit(self) -> None:
        """Give rows to waiting requests, first come first served (a session's own row needs no waiting)."""
        waiting: deque[GenerationRequest] = deque()
        for request in self._queue:
            row = self._rows.acquire(request.session, request.prompt_ids)
            if row is None:
                waiting.append(request)
                continue
            scanner = StopScanner(self.tokenizer, request.stop)
            self._running.append(_Running(request, row, list(request.prompt_ids), TokenStream(request.seed), scanner))
        self._queue = waiting

    def _schedule(self) -> tuple[list[_Running], list[tuple[_Running, int]]]:
        """Requests that get one token, by row, and (request, tokens) of those that still read their prompt."""
        decode_now: list[_Running] = []
        chunks: list[tuple[_Running, int]] = []
        budget = PREFILL_TOKENS
        for run in self._running:
            if not run.started and not (budget and self._start(run)):
                continue
            if run.missing == 1:
                decode_now.append(run)
            elif budget:
                chunks.append((run, min(budget, run.missing)))
                budget -= chunks[-1][1]
        return sorted(decode_now, key=lambda run: run.row.index), chunks

    def _start(self, run: _Running) -> bool:
        """Reuse what any row knows of the prompt's beginning. False: another request is just computing more of it."""
        limit = len(run.sequence) - 1  # the last id is always computed: its logits are needed
        own = common_prefix(run.row.ids, run.sequence[:limit])
        known = max(
            ((common_prefix(row.ids, run.sequence[:limit]), -row.index) for row in self._rows.rows), default=(0, 0)
        )
        coming = max(
            (common_prefix(other.sequence, run.sequence[:limit]) for other in self._running if other.started), default=0
        )
        if coming >= max(own, known[0]) + _WORTH_WAITING:
            return False
        if known[0] >= own + _WORTH_WAITING:
            self._cache.copy(-known[1], run.row.index, known[0])
            own = known[0]
        run.row.ids = run.sequence[:own]
        run.started = True
        return True

    def _forward(self, decode_now: list[_Running], chunks: list[tuple[_Running, int]]) -> None:
        """Compute the scheduled tokens and append one sampled id to every request that reached its end."""
        ids = [run.sequence[-1] for run in decode_now]
        ending = list(range(len(decode_now)))
        ready = list(decode_now)
        for run, length in chunks:
            start = len(run.row.ids)
            ids += run.sequence[start : start + length]
            if start + length == len(run.sequence):
                ending.append(len(ids) - 1)
                ready.append(run)
        plan = StepPlan(
            self._cache,
            [(run.row.index, len(run.row.ids)) for run in decode_now],
            [Chunk(run.row.index, len(run.row.ids), length) for run, length in chunks],
        )
        logits = self._model(
            input_ids=torch.tensor([ids], device=self._device),
            position_ids=plan.positions[None],
            use_cache=False,
            logits_to_keep=torch.tensor(ending or [0], device=self._device),
            slots=plan,
        ).logits[0]
        for run, length in [*((run, 1) for run in decode_now), *chunks]:
            run.row.ids += run.sequence[len(run.row.ids) : len(run.row.ids) + length]
        if not ready:
            return
        chosen, logprobs = sample(logits, [run.request.temperature for run in ready], [run.stream for run in ready])
        for run, token_id, logprob in zip(ready, chosen, logprobs, strict=True):
            run.sequence.append(token_id)
            run.logprobs.append(logprob)

    def _finished(self, run: _Running) -> Generation | None:
        """The generation if the id just sampled ended it."""
        count = len(run.sequence) - len(run.request.prompt_ids)
        if count == 0:
            return None
        if not isfinite(run.logprobs[-1]):
            return self._generation(run, FinishReason.ERROR, error="the model's logits are not finite")
        stop = run.scanner.push(run.sequence[-1])
        if run.sequence[-1] in self._ends:
            return self._generation(run, FinishReason.END)
        if stop is not None:
            return self._generation(run, FinishReason.STOP, stop)
        if count >= run.request.max_new_tokens or len(run.sequence) >= self.max_length:
            return self._generation(run, FinishReason.LENGTH)
        return None

    def _generation(self, run: _Running, finish: FinishReason, stop: str | None = None, error: str = "") -> Generation:
        ids, logprobs = run.sampled, run.logprobs
        if finish == FinishReason.ERROR:
            ids, logprobs = ids[:-1], logprobs[:-1]
            run.row.ids = []
            self._cache.wipe(run.row.index)
        text = decode(self.tokenizer, ids)
        return Generation(run.request.id, tuple(ids), tuple(logprobs), text, finish, stop, error)
