"""All figures of a diagnosis, as JSON values: for every domain the official and the corrected metrics."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from afm_core.config import DiagnoseConfig
from afm_core.moe import metrics, sequences
from afm_core.moe.metrics import Estimates
from afm_core.moe.recording import DomainRouting

Json = dict[str, Any]


def diagnosis(domains: Sequence[DomainRouting], layers: Sequence[int], config: DiagnoseConfig) -> Json:
    """The figures. `layers`: the transformer layers that are mixtures, in order. Not-a-number becomes None."""
    background = _background(domains, config)
    blocks = [one.counts for one in domains]
    totals = np.stack([one.sum(0) for one in blocks]).astype(np.float64)
    by_layer = metrics.estimate(metrics.information, blocks, config.seed)
    result = {
        "domains": [one.name for one in domains],
        "layers": list(layers),
        "experts": int(totals.shape[-1]),
        "top_k": domains[0].top_k,
        "background": config.background or None,
        "information": [_figure(by_layer, place) for place in range(len(layers))],
        "shares": metrics.shares(totals).round(6).tolist(),
        "pairs": _pairs(domains, config),
        "figures": {},
    }
    corrected = {
        "specialization": metrics.estimate(metrics.specialization(background), blocks, config.seed),
        "isolation": metrics.isolation(blocks, config.seed),
        "load": metrics.estimate(metrics.load(domains[0].top_k), blocks, config.seed),
    }
    rank, signal = metrics.effective_rank(blocks, background, config.seed)
    official = {
        "routing_specialization": metrics.official_specialization(totals),
        "normalized_effective_rank": metrics.official_effective_rank(totals),
        "domain_isolation": metrics.official_isolation(totals),
    }
    for place, domain in enumerate(domains):
        result["figures"][domain.name] = {
            "tokens": int(domain.tokens.sum()),
            "documents": domain.documents,
            "official": {name: float(values[place]) for name, values in official.items()},
            **{name: _figure(values, place) for name, values in corrected.items()},
            "effective_rank": {"value": float(rank[place]), "signal": float(signal[place])},
            **_sequences(domain, config),
        }
    cleaned: Json = _without_nan(result)
    return cleaned


def _background(domains: Sequence[DomainRouting], config: DiagnoseConfig) -> int | None:
    return [one.name for one in domains].index(config.background) if config.background else None


def _sequences(domain: DomainRouting, config: DiagnoseConfig) -> Json:
    sample, experts = domain.sample, domain.counts.shape[-1]
    groups = sequences.expert_groups(domain.gates.sum(0))
    value, chance = sequences.vocabulary_specialization(sample, experts, config.seed)
    together = sequences.coselection(sample, experts)
    return {
        "stiffness": {
            "margin": float(sample.margins.mean()),
            "margin_by_layer": sample.margins.mean(0).round(4).tolist(),
            "stability": float(sample.stable.mean()),
            "noise": config.noise,
        },
        "ngrams": [asdict(sequences.same_expert(sample, n, config.seed)) for n in config.ngrams],
        "group_ngrams": [asdict(sequences.inside_group(sample, groups, n, config.seed)) for n in config.ngrams],
        "group_sizes": [len(group) for group in groups],
        "routing_ratio": sequences.routing_ratio(sample, groups),
        "vocabulary": {"value": value, "chance": chance},
        "coselection": {
            "largest": float(together.max()),
            "chance": (domain.top_k - 1) / max(1, experts - 1),
        },
    }


def _pairs(domains: Sequence[DomainRouting], config: DiagnoseConfig) -> list[Json]:
    """Distances of domains: on all their tokens, and on equally many of each token that both have."""
    experts = domains[0].counts.shape[-1]
    found = []
    for place, left in enumerate(domains):
        for right in domains[place + 1 :]:
            whole = metrics.estimate(metrics.pairwise, [left.counts, right.counts], config.seed)
            shared = sequences.shared_vocabulary(left.sample, right.sample, experts)
            matched = metrics.estimate(metrics.pairwise, shared, config.seed)
            names = {"left": left.name, "right": right.name}
            tokens = int(shared[0].sum() / shared[0].shape[1] / left.top_k)
            found.append(
                {**names, "all": _figure(whole, 1), "shared_vocabulary": {**_figure(matched, 1), "tokens": tokens}}
            )
    return found


def _figure(estimates: Estimates, place: int) -> Json:
    return {
        "value": float(estimates.values[place]),
        "low": float(estimates.low[place]),
        "high": float(estimates.high[place]),
        "plain": float(estimates.plain[place]),
    }


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
