"""How far training moves the routing of a mixture-of-experts model: the same tokens routed before and after.

A frozen router drifts too, since trained experts below change what it reads.
"""

from collections.abc import Sequence
from typing import Any

from afm_core.config import ExpertsConfig
from afm_core.moe.expert_training import routing_overlap, routing_sets
from afm_core.training.rows import Row


class RoutingDrift:
    """The routing of a model's first training rows, now; `overlap` compares it with the routing then."""

    def __init__(self, model: Any, rows: Sequence[Row], config: ExpertsConfig | None) -> None:
        self._model = model
        self._rows: list[tuple[int, ...]] = []
        tokens = 0
        for row in rows if config is not None else ():
            if config is None or tokens >= config.drift_tokens:
                break
            self._rows.append(row.ids)
            tokens += len(row.ids)
        self._before = routing_sets(model, self._rows) if self._rows else None

    def overlap(self) -> list[float]:
        """For each mixture layer the mean Jaccard overlap of a token's experts; empty if experts are not selected."""
        if self._before is None:
            return []
        return routing_overlap(self._before, routing_sets(self._model, self._rows))
