"""Weights from the trainer to the sampler, and the proof that they are what samples from now on.

A sampler that keeps old weights, or keys and values computed with them, still produces fluent episodes: training only
gets slowly worse. So every load is proved. (a) By digest: an update changed the trainer's weights, and the sampler
names the same ones. (b) By a probe: every engine continues a fixed prompt greedily, and its log-probabilities are the
trainer's own up to rounding. The probe's prompt is the same every time, so an engine that did not empty its prefix
cache answers it from the keys and values of the weights before.
"""

import itertools
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor

from afm_core.engines import FinishReason, Generation
from afm_core.engines.weights import directory_digest, weights_digest
from afm_core.rollout.sampler import Sampler, Weights
from afm_core.training.export import save_model

_LOG = logging.getLogger(__name__)

PROBE_TOKENS = 16
"""Tokens that every engine continues the probe's prompt with."""

PROBE_PROMPT_TOKENS = 160
"""Shortest probe prompt: a prefix cache keeps whole blocks only, of 16 tokens (vLLM on a GPU) or 128 (on a CPU), so a
shorter prompt would never be cached and could not show a cache that was not emptied."""

Score = Callable[[Sequence[int], int], list[float]]
"""(ids, prompt length) -> the trainer's log-probabilities, temperature 1, of the ids after the prompt."""


class SyncError(RuntimeError):
    """The sampler does not use the trainer's weights. Going on would train on another policy's episodes."""


@dataclass(frozen=True)
class SyncReport:
    """version: digest of the weights in use. probe_difference: the largest over engines and tokens, nats."""

    version: str
    probe_difference: float
    seconds: float


class TrainerWeights:
    """The trainer's weights at one moment (afm_core.rollout.sampler.Weights).

    Args:
        state: tensors of the causal LM by name, adapters merged, on any device. They are not copied.
        base: the model directory that the rest (configuration, tokenizer) comes from.
        root: where a directory is written if a sampler asks for one; the objects of one run share it, nobody else.
        dtype: "float32" or "bfloat16", the format of the weights.
    """

    def __init__(self, state: Mapping[str, Tensor], base: Path, root: Path, dtype: str = "float32") -> None:
        import torch

        wanted = getattr(torch, dtype)
        self._state = {name: tensor.detach().to(wanted) for name, tensor in state.items()}
        self._base = base
        self._root = root
        self._dtype = dtype

    @cached_property
    def version(self) -> str:
        """Digest of the weights, computed at the first use: before they change."""
        return weights_digest(self._state)

    def state(self) -> Mapping[str, Tensor]:
        """The tensors."""
        return self._state

    def directory(self) -> Path:
        """The weights as a model directory below `root`, written at the first call; older ones are removed.

        Raises ValueError if the trainer has changed the weights since `version` was computed.
        """
        path = self._root / self.version
        if not path.is_dir():
            self._root.mkdir(parents=True, exist_ok=True)
            writing = self._root / f"{self.version}.writing"
            save_model(self._state, self._base, writing, {"method": "weight sync"}, self._dtype)
            if directory_digest(writing) != self.version:
                shutil.rmtree(writing)
                raise ValueError(f"the weights have changed since they were version {self.version[:12]}")
            writing.rename(path)
        for other in self._root.iterdir():
            if other != path:
                shutil.rmtree(other)
        return path

    def remove(self) -> None:
        """Delete the directory if one was written."""
        shutil.rmtree(self._root / self.version, ignore_errors=True)


def probe_prompt(prompts: Iterable[Sequence[int]]) -> list[int]:
    """A prompt of at least PROBE_PROMPT_TOKENS ids, made of whole prompts one after the other (repeated if few).

    Raises ValueError if there are no ids at all.
    """
    pieces = [list(ids) for ids in prompts if ids]
    if not pieces:
        raise ValueError("a probe needs a prompt")
    probe: list[int] = []
    for ids in itertools.cycle(pieces):
        probe += ids
        if len(probe) >= PROBE_PROMPT_TOKENS:
            return probe
    raise AssertionError("unreachable")


def synchronise(
    sampler: Sampler,
    weights: Weights,
    previous_version: str | None,
    score: Score,
    probe_prompt_ids: Sequence[int],
    tolerance: float,
) -> SyncReport:
    """Load the weights into every engine and prove it.

    Args:
        previous_version: what was loaded before, if the trainer has made an update since; else None or "".
        score: the trainer's own log-probabilities.
        probe_prompt_ids: the same ids every time, see `probe_prompt`.
        tolerance: largest difference of a log-probability that rounding explains, in nats.

    Raises:
        SyncError: the update changed nothing, the digest is another, or an engine's probe disagrees.
    """
    began = time.monotonic()
    if previous_version and weights.version == previous_version:
        raise SyncError(
            f"the trainer's update left the weights as they were ({previous_version[:12]}): is the learning rate 0, or "
            "do trained adapters not reach the exported weights?"
        )
    loaded = sampler.load(weights)
    if loaded != weights.version:
        raise SyncError(f"the sampler loaded weights {loaded[:12]}, the trainer has {weights.version[:12]}")
    differences = [
        _difference(engine, generation, score, probe_prompt_ids)
        for engine, generation in enumerate(sampler.probe(probe_prompt_ids, PROBE_TOKENS))
    ]
    for engine, difference in enumerate(differences):
        if not difference <= tolerance:  # NaN disagrees too
            raise SyncError(
                f"engine {engine} does not sample from the trainer's weights {loaded[:12]}: its log-probabilities of "
                f"the probe differ by {difference:.4g} (rl.probe_tolerance {tolerance:g}); it kept old weights or a "
                "cache of them, or engine.dtype is coarser than rl.dtype"
            )
    if not differences:
        raise SyncError("the sampler has no engine that answered the probe")
    report = SyncReport(loaded, max(differences), time.monotonic() - began)
    _LOG.info("weights %s in use, probe differs by %.2g, %.1f s", loaded[:12], report.probe_difference, report.seconds)
    return report


def _difference(engine: int, generation: Generation, score: Score, prompt: Sequence[int]) -> float:
    """The largest difference between an engine's log-probabilities and the trainer's (nats)."""
    if generation.finish is FinishReason.ERROR or not generation.token_ids:
        raise SyncError(f"engine {engine} could not answer the probe: {generation.error or 'it returned no token'}")
    expected = score([*prompt, *generation.token_ids], len(prompt))
    if len(expected) != len(generation.logprobs):
        raise SyncError(
            f"engine {engine} reported {len(generation.logprobs)} log-probabilities, the trainer {len(expected)}"
        )
    differences = [abs(mine - theirs) for mine, theirs in zip(expected, generation.logprobs, strict=True)]
    return math.nan if any(math.isnan(one) for one in differences) else max(differences)
