"""How far training moves the routing of a mixture-of-experts model: the same tokens routed before and after.

A frozen router drifts too, since trained experts below change what it reads.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from afm_core.config import ExpertsConfig
from afm_core.moe.expert_training import routing_overlap, routing_sets
from afm_core.training.rows import Row


class RoutingDrift:
    """The routing of a model's first training rows, now; `overlap` compares it with the routing then."""

    def __init__(self, model: Any, rows: Sequence[Row], config: ExpertsConfig | None) -> None:
        self._model = model
        tokens = 0 if config is None else config.drift_tokens
        ends = accumulate(len(row.ids) for row in rows)
        self._rows = [row.ids for row, end in zip(rows, ends, strict=True) if end - len(row.ids) < tokens]
        self._before = routing_sets(model, self._rows) if self._rows else None

    def overlap(self) -> list[float]:
        """For each mixture layer the mean Jaccard overlap of a token's experts; empty if experts are not selected."""
        if self._before is None:
            return []
        return routing_overlap(self._before, routing_sets(self._model, self._rows))
