"""Tasks generated from the documents become rows of a task pool; a retraining that listens to the pool then starts.

    corpus ─► tasks ─► pool version ─► event afm.tasks.published ─► retrain

What is generated differs from the profile's own tasks by its overrides (another seed, other counts): what the profile
or the pool already has is no new task. Splits are the pool's business, so that no entity is on both sides.
"""

from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger

import tasks as stage
from afm_core.config import home, load_config
from afm_core.data import tasks_from_table
from afm_core.execution import RoadStage, known_to, private_scratch
from afm_core.store import read_table
from afm_core.taskcraft import generated_rows, publish_rows
from flows.announce import announce
from flows.parameters import Override, ProfileName, StageName
from flows.publish import publish
from flows.session import open_session


@flow(name="generate-tasks", flow_run_name="{profile} for {pool}", persist_result=False)
def generate_tasks(
    profile: ProfileName = "laptop",
    pool: str = "default",
    overrides: list[Override] | None = None,
    config_file: str | None = None,
    refresh: list[StageName] | None = None,
    run_id: str | None = None,
) -> dict[str, Any]:
    """Generate tasks and add what is new to a pool.

    Args:
        profile: a shipped profile, see configs/.
        pool: the task pool that gets them.
        overrides: `section.key=value` over the profile, for example `tasks.seed=7`.
        config_file: a TOML file between the two.
        refresh: stages to make anew although they are cached.
        run_id: name of the run; made up if not given.

    Returns:
        The run's record, with the pool's version and how many tasks are new to it.
    """
    own = load_config(profile, Path(config_file) if config_file else None)
    asked = {"pool": pool}
    with open_session(profile, config_file, overrides or [], refresh or [], run_id, RoadStage.TASKS, asked) as session:
        corpus = stage.corpus.submit(session)
        generated = stage.tasks.submit(session, corpus).result()
        with private_scratch(home() / "scratch") as scratch:
            rows = generated_rows(tasks_from_table(read_table(session.store.open(generated).path / "tasks.parquet")))
            known = known_to(own, session.store)
            published = publish_rows(session.store, pool, rows, known, own.pool.shares, scratch)
        added = len(published.admission.added)
        version = published.head.version if published.head else None
        session.record.pool = {"name": pool, "version": version, "added": added}
        get_run_logger().info("%d of %d generated tasks are new to the pool %s", added, len(rows), pool)
        announce(session.store, pool)
        return publish(session)


if __name__ == "__main__":
    generate_tasks()
