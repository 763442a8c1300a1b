"""Opens the configured sampler: an engine in this process, or engines in Ray actors."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from afm_core.config import AgentConfig, RunConfig
from afm_core.data import Tag, documents_from_table
from afm_core.engines import open_engine
from afm_core.rollout.local import LocalSampler
from afm_core.rollout.ray_workers import RaySampler
from afm_core.rollout.sampler import Sampler
from afm_core.store import read_table
from afm_core.tools import build_tools
from afm_core.tools.protocol import Tool


def open_sampler(config: RunConfig, policy: Path, version: str, documents: Path, scratch: Path) -> Sampler:
    """The sampler of a run; its engines have no weights until the first `load`.

    documents: the corpus' parquet file, which every machine can read. Raises ConfigError for an engine or tools that
    cannot be opened, or a cluster without room.
    """
    make_engine = partial(open_engine, config.engine, policy, version, weights=False)
    make_tools = partial(_tools, config.agent, documents, scratch)
    if config.rollout.workers:
        gpus = config.rl.gpus_per_worker
        return RaySampler(make_engine, make_tools, config.agent, config.engine, config.rollout, trainer_gpus=gpus)
    return LocalSampler(
        make_engine(),
        make_tools(),
        config.agent,
        deterministic=config.rollout.deterministic,
        stall_seconds=config.rollout.stall_seconds,
        simulated_tool_seconds=config.rollout.simulated_tool_seconds,
        lent_weights=not config.rl.maximum_staleness,  # then the loop lets it rest before every update
    )


def _tools(agent: AgentConfig, documents: Path, scratch: Path) -> Mapping[Tag, Tool]:
    return build_tools(agent, documents_from_table(read_table(documents)), scratch)
