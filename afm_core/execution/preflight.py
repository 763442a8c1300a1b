"""What a run is refused for before anything of it starts: a store, tools or a base model that cannot work.

Only what is known cheaply is looked at: nothing is fetched, no document is made. The plan, the command line and every
session ask here, so that a scheduled run is refused as early as one from the terminal.
"""

import os

from afm_core.config import RunConfig, Runner, TeacherKind, home
from afm_core.engines.backbone import endpoint_key
from afm_core.execution.experts import expert_inputs
from afm_core.execution.ray_target import ray_target
from afm_core.execution.stages import key_of
from afm_core.store import StageSpec, Store, open_store
from afm_core.tools import check_tools
from afm_core.training import check_source, is_made


def open_run_store(config: RunConfig, *, create: bool = True) -> Store:
    """The store of a run that may start; `create=False` (the plan) makes nothing.

    Raises:
        ConfigError: an unusable store, an unknown tool, a language model's key that is not set, a Ray cluster whose
            jobs would not reach the store, a diagnosis or a base model that is not in the store and cannot be had.
    """
    check_tools(config.agent)
    if config.teacher.kind is TeacherKind.TEAM:
        check_keys(config)
    ray_target(config, store_uri(config))
    store = open_store(store_uri(config), home() / "cache", create=create)
    expert_inputs(store, config)
    source = config.model.source
    if not is_made(source) and store.lookup(_base_key(config, store)) is None:
        check_source(source)
    return store


def check_keys(config: RunConfig) -> None:
    """Raise ConfigError if an endpoint of the team has no key here. Jobs of a cluster have their own environment."""
    if config.execution.runner is Runner.PROCESS:
        for endpoint in config.team.endpoints:
            endpoint_key(endpoint)


def store_uri(config: RunConfig) -> str:
    """Where artifacts live: configured, or `$AFM_STORE`, or `$AFM_HOME/store`."""
    return config.store.uri or os.environ.get("AFM_STORE") or str(home() / "store")


def _base_key(config: RunConfig, store: Store) -> str:
    """The key of the stage `base` for a model that is brought in; it has no inputs."""
    return key_of(StageSpec(stage="base", config=config.model_dump(mode="json"), store_uri=store.uri))
