"""What is kept of a domain's routing: counts of all its tokens, and the routing itself of a bounded sample.

Counts are kept by block of documents, [G, L, E]: with at least two documents a domain the blocks give intervals by
document (bootstrap) and the chance level (split halves) without the corpus. Everything that needs the order of tokens
or pairs of experts (n-grams, margins, co-selection, vocabulary) is computed from the sample: the first
`sample_tokens` tokens. Memory depends on the model and these numbers alone, never on the corpus.

Letters: T tokens, L mixture-of-experts layers, E experts, k experts a token, G blocks.
"""

import json
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import Tensor

from afm_core.moe.capture import MoeLayer, Routing, ranked_scores

BLOCKS = 64
"""Blocks of documents; with fewer documents every document is a block of its own."""


@dataclass(frozen=True)
class RoutingSample:
    """The routing of consecutive tokens of whole documents, as far as they fit.

    token_ids, documents [T]; indices int16 and weights float32 [T, L, k]; margins float32 [T, L]: the smallest ranked
    score chosen minus the largest one not chosen, over the layer's standard deviation; stable bool [T, L]: the set of
    experts is the same with noise on every score.
    """

    token_ids: NDArray[np.int64]
    documents: NDArray[np.int64]
    indices: NDArray[np.int16]
    weights: NDArray[np.float32]
    margins: NDArray[np.float32]
    stable: NDArray[np.bool_]

    @property
    def primary(self) -> NDArray[np.int16]:
        """[T, L], each token's strongest expert. (The first listed one need not be it: top-k may be unsorted.)"""
        best = self.weights.argmax(-1)[..., None]
        return np.asarray(np.take_along_axis(self.indices, best, axis=-1)[..., 0])


@dataclass(frozen=True)
class DomainRouting:
    """A domain: tokens [G], counts [G, L, E] of selections, gates [G, L, E] sums of weights, and the sample."""

    name: str
    documents: int
    tokens: NDArray[np.int64]
    counts: NDArray[np.int64]
    gates: NDArray[np.float64]
    sample: RoutingSample

    @property
    def top_k(self) -> int:
        """Experts a token and layer."""
        return int(self.sample.indices.shape[-1])

    def save(self, path: Path) -> None:
        """Write it as safetensors; equal content gives equal bytes."""
        arrays = {name: getattr(self, name) for name in ("tokens", "counts", "gates")}
        arrays |= {f"sample.{one.name}": getattr(self.sample, one.name) for one in fields(RoutingSample)}
        # One entry: safetensors writes several in no fixed order.
        about = {"domain": json.dumps({"name": self.name, "documents": self.documents})}
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path, metadata=about)

    @classmethod
    def load(cls, path: Path) -> "DomainRouting":
        """What `save` wrote."""
        with safe_open(path, framework="numpy") as file:
            about = json.loads(file.metadata()["domain"])
            sample = RoutingSample(*(file.get_tensor(f"sample.{one.name}") for one in fields(RoutingSample)))
            tokens, counts, gates = (file.get_tensor(name) for name in ("tokens", "counts", "gates"))
        return cls(about["name"], about["documents"], tokens, counts, gates, sample)


@dataclass
class Recorder:
    """Collects one domain. Call `begin` before a forward pass; hand `sink` and `mask` to `captured`.

    noise: its size on every ranked score for `stable`, in standard deviations of the layer's scores (uniform in
    [-noise, noise]). The random numbers of a batch depend on `seed` and on how many tokens came before.
    """

    name: str
    layers: list[MoeLayer]
    sample_tokens: int
    noise: float = 0.05
    seed: int = 0
    _tokens: NDArray[np.int64] = field(init=False)
    _counts: NDArray[np.int64] = field(init=False)
    _gates: NDArray[np.float64] = field(init=False)
    _parts: list[dict[str, NDArray[np.generic]]] = field(default_factory=list)
    _documents: int = 0
    _sampled: int = 0

    def __post_init__(self) -> None:
        experts = {layer.num_experts for layer in self.layers}
        assert len(experts) == 1, f"layers with different numbers of experts: {experts}"
        shape = (BLOCKS, len(self.layers), experts.pop())
        self._tokens = np.zeros(BLOCKS, np.int64)
        self._counts = np.zeros(shape, np.int64)
        self._gates = np.zeros(shape, np.float64)

    def begin(self, token_ids: Tensor, documents: Tensor, mask: Tensor) -> None:
        """The batch that comes: ids and document numbers (from 0, growing) [batch, length], and what is no padding."""
        self._mask = mask.bool()
        flat = documents[self._mask]
        self._blocks = flat % BLOCKS
        self._documents = max(self._documents, int(flat.max()) + 1) if len(flat) else self._documents
        self._tokens += np.bincount(self._blocks.cpu().numpy(), minlength=BLOCKS)
        self._taken = min(len(flat), self.sample_tokens - self._sampled)
        if self._taken:
            width = len(self.layers)
            self._generator = torch.Generator().manual_seed(self.seed + self._sampled)
            self._part = {
                "token_ids": token_ids[self._mask][: self._taken].cpu().numpy(),
                "documents": flat[: self._taken].cpu().numpy(),
                "margins": np.zeros((self._taken, width), np.float32),
                "stable": np.zeros((self._taken, width), np.bool_),
            }
            self._parts.append(self._part)
            self._sampled += self._taken

    def mask(self) -> Tensor:
        """What counts of the batch."""
        return self._mask

    def sink(self, routing: Routing) -> None:
        """Take one layer's routing."""
        count = routing.indices.shape[-1]
        experts = self._counts.shape[-1]
        place = (self._blocks[:, None] * experts + routing.indices).reshape(-1)
        size = BLOCKS * experts
        self._counts[:, routing.place] += torch.bincount(place, minlength=size).cpu().numpy().reshape(BLOCKS, -1)
        gates = torch.bincount(place, routing.weights.reshape(-1).double(), minlength=size)
        self._gates[:, routing.place] += gates.cpu().numpy().reshape(BLOCKS, -1)
        if self._taken:
            self._keep(routing, count)

    def _keep(self, routing: Routing, count: int) -> None:
        taken, width = self._taken, len(self.layers)
        part = self._part
        if routing.place == 0:
            part["indices"] = np.zeros((taken, width, count), np.int16)
            part["weights"] = np.zeros((taken, width, count), np.float32)
        part["indices"][:, routing.place] = routing.indices[:taken].cpu().numpy()
        part["weights"][:, routing.place] = routing.weights[:taken].float().cpu().numpy()
        scores = ranked_scores(self.layers[routing.place], routing.logits[:taken])
        margins, stable = stiffness(scores, count, self.noise, self._generator)
        part["margins"][:, routing.place] = margins.cpu().numpy()
        part["stable"][:, routing.place] = stable.cpu().numpy()

    def result(self) -> DomainRouting:
        """The domain so far. Raises ValueError if no token came."""
        if not self._sampled:
            raise ValueError(f"domain {self.name!r} has no token to route")
        names = ("token_ids", "documents", "indices", "weights", "margins", "stable")
        sample = RoutingSample(*(np.concatenate([part[name] for part in self._parts]) for name in names))
        used = max(1, min(self._documents, BLOCKS))
        return DomainRouting(
            self.name, self._documents, self._tokens[:used], self._counts[:used], self._gates[:used], sample
        )


def stiffness(scores: Tensor, count: int, noise: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Margin of the chosen set in standard deviations of the scores, and whether noise on all scores leaves it alone.

    scores [N, E], -inf where a group was ruled out (such experts cannot win). Returns [N] and [N] booleans.
    """
    finite = torch.isfinite(scores)
    spread = scores[finite].std().clamp_min(1e-12)
    best, chosen = scores.topk(min(count + 1, scores.shape[-1]), dim=-1)
    rival = best[:, count] if best.shape[-1] > count else torch.full_like(best[:, 0], -torch.inf)
    margins = torch.where(torch.isfinite(rival), (best[:, count - 1] - rival) / spread, torch.zeros_like(rival))
    shift = (torch.rand(scores.shape, generator=generator) * 2 - 1).to(scores) * (noise * spread)
    again = (scores + shift).topk(count, dim=-1)[1]
    same = again.sort(-1)[0] == chosen[:, :count].sort(-1)[0]
    return margins, same.all(-1)
