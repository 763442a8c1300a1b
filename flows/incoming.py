"""The scheduled poll: files in `incoming/` of the store become rows of a task pool, and new versions are announced.

    incoming/*.jsonl, *.parquet ─► rows (bad ones to rejected/) ─► pool version ─► event afm.tasks.published ─► retrain

Any number of polls may overlap; see afm_core.taskcraft.incoming.
"""

from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_table_artifact

from afm_core.config import home, load_config
from afm_core.execution import known_to, private_scratch, store_uri
from afm_core.store import open_store
from afm_core.taskcraft import ingested_figures, poll_once
from flows.announce import announce
from flows.parameters import Override, ProfileName


@flow(name="poll-incoming", flow_run_name="{pool}", persist_result=False)
def poll_incoming(
    profile: ProfileName = "laptop",
    pool: str = "default",
    overrides: list[Override] | None = None,
    config_file: str | None = None,
) -> dict[str, Any]:
    """Take in what was dropped into `incoming/` of the store, and announce every pool version that is new.

    Args:
        profile: the profile whose tasks and documents the rows are held against.
        pool: the task pool that gets them.
        overrides: `section.key=value` over the profile, for example `store.uri=s3://bucket/prefix`.
        config_file: a TOML file between the two.

    Returns:
        The pool, what became of each file, and the versions that were announced.
    """
    config = load_config(profile, Path(config_file) if config_file else None, overrides or [])
    store = open_store(store_uri(config), home() / "cache")
    with private_scratch(home() / "scratch") as scratch:
        files = ingested_figures(poll_once(store, pool, known_to(config, store), config.pool.shares, scratch))
    announced = [version.version for version in announce(store, pool)]
    for file in files:
        get_run_logger().info("%(file)s: %(added)d added, %(duplicates)d known, %(rejected)d rejected", file)
    if files:
        create_table_artifact(key="incoming", table=files, description=f"Files for the task pool {pool}")
    return {"pool": pool, "files": files, "announced": announced}


if __name__ == "__main__":
    poll_incoming()
