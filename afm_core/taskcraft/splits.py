"""Splits by connected component: all tasks about a component's entities go to one split."""

import random
from collections.abc import Mapping

from afm_core.config import ConfigError, SplitCounts
from afm_core.data import Split


def plan_splits(sizes: Mapping[str, int], counts: SplitCounts, seed: int) -> dict[str, Split]:
    """Component -> split, so that the splits' sizes are near the proportions of `counts`; every split gets some.

    Big components are dealt first, each to the split that has least of its share, so that no split gets all of them.

    Raises:
        ConfigError: fewer components than splits.
    """
    if len(sizes) < len(Split):
        raise ConfigError(
            f"{len(sizes)} independent component(s) of documents cannot fill {len(Split)} splits: "
            "tasks of one component must stay in one split; add documents about other entities"
        )
    order = sorted(sizes)
    random.Random(f"splits {seed}").shuffle(order)
    order.sort(key=lambda component: -sizes[component])
    filled = dict.fromkeys(Split, 0.0)
    plan: dict[str, Split] = {}
    for component in order:
        split = min(Split, key=lambda one: (filled[one] / getattr(counts, one), -getattr(counts, one)))
        plan[component] = split
        filled[split] += max(sizes[component], 1)
    return plan
