"""The row checks over parquet with Ray Data: each worker judges blocks of rows, the verdicts come back as a
table.

Only verdicts travel, never trajectories. A verdict is a pure function of its row, and the global steps order
rows by id, so that neither blocks nor workers can change the outcome. Nothing is ever written from here.
"""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from afm_core.cluster import connected
from afm_core.config import CurationConfig
from afm_core.curation.leaks import LeakIndex
from afm_core.curation.reasons import RejectReason
from afm_core.curation.rows import RowFacts, judge_row
from afm_core.data import AgentTask

FACTS_SCHEMA = pa.schema(
    [
        *[(name, pa.string()) for name in ("id", "digest", "reason", "detail", "text_key")],
        *[(name, pa.bool_()) for name in ("reflects", "corrected", "guessable")],
    ]
)

BATCH_ROWS = 64
"""Rows a worker holds at a time."""
LOCAL_CPUS = 2


def judge_table(table: pa.Table, tasks: Mapping[str, AgentTask], leaks: LeakIndex, config: CurationConfig) -> pa.Table:
    """Verdicts of a block of rows, one a row, in its order."""
    facts = [judge_row(row, tasks, leaks, config) for row in table.to_pylist()]
    return pa.Table.from_pylist([asdict(one) for one in facts], schema=FACTS_SCHEMA)


def facts_from_table(table: pa.Table) -> list[RowFacts]:
    """Verdicts as objects."""
    rows = table.to_pylist()
    return [RowFacts(**{**row, "reason": RejectReason(row["reason"]) if row["reason"] else None}) for row in rows]


def judge_parquet(
    path: Path,
    tasks: Mapping[str, AgentTask],
    leaks: LeakIndex,
    config: CurationConfig,
    blocks: int | None = None,
) -> list[RowFacts]:
    """Judge every row of a parquet file with Ray Data; the order of the verdicts means nothing.

    Joins the cluster of RAY_ADDRESS, else starts a small local Ray for the call. `blocks` overrides the
    number of blocks read (None: a few; the file is small).

    Raises:
        RuntimeError: the verdicts are not one a row.
    """
    import ray.data

    with connected(LOCAL_CPUS):
        _quiet()
        shared = [ray.put(value) for value in (dict(tasks), leaks, config)]
        dataset = ray.data.read_parquet(str(path), override_num_blocks=blocks or LOCAL_CPUS)
        judged = dataset.map_batches(
            _judge_batch, batch_format="pyarrow", batch_size=BATCH_ROWS, fn_kwargs={"shared": shared}
        )
        tables = [ray.get(reference) for reference in judged.to_arrow_refs()]
        _retire_statistics()
        facts = [one for table in tables for one in facts_from_table(table)]
        expected = pq.read_metadata(path).num_rows
    if len(facts) != expected:
        raise RuntimeError(f"{path}: {len(facts)} verdicts for {expected} rows")
    return facts


def _retire_statistics() -> None:
    """Ray Data's detached statistics actor would keep 120 MB of a laptop for the rest of the run; any later use of
    Ray Data starts it anew. Only on the run's own Ray: a shared cluster's actor serves others.
    """
    import ray

    if os.environ.get("AFM_LOCAL_RAY"):
        with suppress(ValueError):
            ray.kill(ray.get_actor("datasets_stats_actor", namespace="_dataset_stats_actor"))


def _judge_batch(table: pa.Table, shared: list[Any]) -> pa.Table:
    import ray

    tasks, leaks, config = ray.get(shared)
    return judge_table(table, tasks, leaks, config)


def _quiet() -> None:
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    logging.getLogger("ray.data").setLevel(logging.WARNING)
