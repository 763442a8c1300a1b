"""Which experts to train for a domain: scores, the smallest set that carries the domain, a budget, and controls.

Scores: ESFT's two (arXiv 2407.01906: mean gate value, share of selections; rows are renormalised to sum to 1 a layer,
since top-k weights do not in every architecture, and p would mean something else in each), and the contribution to RS*,
r_d ln(r_d / r_bg): experts that the domain uses more than the background does. A path keeps those experts alone that
are chosen together across adjacent layers more often than chance.
"""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from afm_core.config import ConfigError
from afm_core.moe.metrics import background_of, shares

Floats = NDArray[np.float64]
Chosen = list[list[int]]
"""For each mixture layer, ascending expert numbers."""


class Score(StrEnum):
    """How an expert's worth for a domain is measured."""

    TOKEN = "token"
    """ESFT-Token: the expert's share of the domain's selections."""
    GATE = "gate"
    """ESFT-Gate: its share of the domain's routing weight."""
    CONTRIBUTION = "contribution"
    """Its part of RS*: r_d ln(r_d / r_bg)."""
    PATH = "path"
    """CONTRIBUTION, among experts on chains that are co-selected across adjacent layers."""


class ExpertSelection(BaseModel):
    """A choice of experts, as it is stored and trained.

    experts: transformer layer (as text) -> expert numbers; layers without a chosen expert are left out.
    trainable_share: their parameters over all parameters of the model.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    domain: str
    score: str
    experts: dict[str, list[int]]
    num_experts: int
    trainable_share: float

    def chosen(self, layers: Sequence[int]) -> Chosen:
        """The numbers for each of those transformer layers. Raises ConfigError if the selection names another one."""
        if unknown := sorted(set(self.experts) - {str(layer) for layer in layers}):
            raise ConfigError(
                f"the selection names layer {unknown[0]}, no mixture layer of this model: it was made of another one"
            )
        return [sorted(self.experts.get(str(layer), [])) for layer in layers]

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(self.model_dump(), indent=2, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "ExpertSelection":
        """What `save` wrote. Raises ConfigError if it is no selection."""
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is no selection of experts: {str(error).splitlines()[0]}") from error


def scores(
    kind: Score, domain: int, counts: NDArray[np.int64], gates: Floats, background: int | None = None
) -> tuple[Floats, Floats]:
    """Score and lift r_d / r_bg of every expert of a domain, both [L, E].

    counts, gates: [D, L, E] of all domains. Scores of TOKEN and GATE sum to 1 a layer, as do the positive ones of
    CONTRIBUTION and PATH (an expert that is used less than in the background scores 0).
    """
    used = shares(counts)
    own, behind = used[domain], background_of(used, background)[0]
    lift = np.where(behind > 0, own / np.where(behind > 0, behind, 1.0), 0.0)
    if kind is Score.TOKEN:
        return own, lift
    if kind is Score.GATE:
        return shares(gates)[domain], lift
    contribution = np.where(lift > 1, own * np.log(np.where(lift > 1, lift, 1.0)), 0.0)
    total = contribution.sum(-1, keepdims=True)
    return np.where(total > 0, contribution / np.where(total > 0, total, 1.0), 0.0), lift


def smallest_sets(score: Floats, mass: float, lift: Floats | None = None, minimum_lift: float = 0.0) -> Chosen:
    """For each layer the fewest best experts whose score sums to at least `mass`; those below the lift are passed over.

    A layer whose admitted experts never reach the mass gives them all.
    """
    chosen = []
    for layer, row in enumerate(score):
        order = [int(one) for one in np.argsort(-row, kind="stable") if row[one] > 0]
        if lift is not None:
            order = [one for one in order if lift[layer, one] >= minimum_lift]
        reached = np.cumsum(row[order])
        chosen.append(sorted(order[: int(np.searchsorted(reached, mass - 1e-12)) + 1]))
    return chosen


def within_budget(chosen: Chosen, score: Floats, experts: int) -> Chosen:
    """At most so many experts over all layers: the best scores stay; ties go to the lower layer and number."""
    ranked = sorted(
        ((layer, expert) for layer, some in enumerate(chosen) for expert in some),
        key=lambda place: (-score[place], place),
    )
    kept = set(ranked[:experts])
    return [[expert for expert in some if (layer, expert) in kept] for layer, some in enumerate(chosen)]


def on_paths(chosen: Chosen, lift: Floats, minimum: float = 1.0) -> Chosen:
    """Those experts that have a chosen partner in the next or the previous mixture layer, co-selected above `minimum`.

    lift: [L - 1, E, E], see afm_core.moe.sequences.transitions. Repeated until nothing falls: what stays lies on chains
    of chosen experts.
    """
    current = [list(some) for some in chosen]
    while True:
        kept = [
            [
                expert
                for expert in some
                if any(lift[layer, expert, other] > minimum for other in _at(current, layer + 1))
                or any(lift[layer - 1, other, expert] > minimum for other in _at(current, layer - 1))
            ]
            for layer, some in enumerate(current)
        ]
        if kept == current:
            return kept
        current = kept


def _at(chosen: Chosen, layer: int) -> list[int]:
    return chosen[layer] if 0 <= layer < len(chosen) else []


def best_experts(score: Floats, sizes: Sequence[int]) -> Chosen:
    """For each layer the `sizes[layer]` best experts: a selection at the size of another one."""
    return [sorted(np.argsort(-row, kind="stable")[:size].tolist()) for row, size in zip(score, sizes, strict=True)]


def random_experts(num_experts: int, sizes: Sequence[int], seed: int) -> Chosen:
    """The control: as many experts a layer, drawn at random."""
    generator = np.random.default_rng(seed)
    return [sorted(generator.choice(num_experts, size, replace=False).tolist()) for size in sizes]


def to_selection(
    domain: str, score: str, chosen: Chosen, layers: Sequence[int], shape: Mapping[str, int]
) -> ExpertSelection:
    """The storable form. shape: `num_experts`, `expert_parameters` (of one expert) and `parameters` (of the model)."""
    experts = {str(layer): some for layer, some in zip(layers, chosen, strict=True) if some}
    trained = sum(len(some) for some in experts.values()) * shape["expert_parameters"]
    return ExpertSelection(
        domain=domain,
        score=score,
        experts=experts,
        num_experts=shape["num_experts"],
        trainable_share=trained / shape["parameters"],
    )


def selection_name(domain: str, score: str) -> str:
    """The file of a selection inside a diagnosis."""
    return f"selections/{domain}-{score}.json"


def selection_of(diagnosis: Path, domain: str, score: str) -> ExpertSelection:
    """A selection of a diagnosis. Raises ConfigError listing what it has if there is no such selection."""
    path = diagnosis / selection_name(domain, score)
    if not path.is_file():
        known = sorted(one.stem for one in (diagnosis / "selections").glob("*.json"))
        raise ConfigError(f"the diagnosis has no selection {domain}-{score}; it has {', '.join(known) or 'none'}")
    return ExpertSelection.load(path)
