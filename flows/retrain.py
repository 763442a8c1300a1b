"""Retraining for new task data: the pool's new versions go down the road, old work is reused.

    corpus ─► tasks ─► pool (what is new since the champion)
                └► teach ─► teach: version 1 ─► version 2 ... (only the newest is not cached) ─► curate
    base model or champion ─► sft ─► select ─► rl ─► evaluate beside the champion ─► register

Every version's additions are demonstrated once, for ever: a stage of its own, cached. The gate judges new and old tasks
apart; with too few new gate tasks nothing is trained, for nothing could be decided.
"""

from typing import Any

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

import tasks as stage
from afm_core.execution import RoadStage
from flows.parameters import Override, ProfileName, StageName
from flows.pipeline import finished
from flows.publish import prepare, publish
from flows.session import open_session


@flow(
    name="retrain",
    flow_run_name="{profile} {pool}",
    persist_result=False,
    task_runner=ThreadPoolTaskRunner(max_workers=8),  # type: ignore[arg-type]
)
def retrain(
    profile: ProfileName = "laptop",
    pool: str = "default",
    version: int | None = None,
    overrides: list[Override] | None = None,
    config_file: str | None = None,
    refresh: list[StageName] | None = None,
    run_id: str | None = None,
    until: RoadStage = RoadStage.RL,
) -> dict[str, Any]:
    """Train for what a task pool has that the champion does not know, and let the gate decide.

    Args:
        profile: a shipped profile, see configs/.
        pool: the task pool (`afm tasks add`).
        version: its version; the newest if not given.
        overrides: `section.key=value` over the profile, for example `sft.start=champion`.
        config_file: a TOML file between the two.
        refresh: stages to make anew although they are cached.
        run_id: name of the run; made up if not given.
        until: the last stage; from sft on, what was trained is evaluated and registered.

    Returns:
        The run's record: status, stages, models, pool, champion (or why there is no new one) and the report's path.
    """
    asked = {"pool": pool, "version": version}
    with open_session(profile, config_file, overrides or [], refresh or [], run_id, until, asked) as session:
        growth = stage.growth.submit(session, pool, version).result()
        session.record.pool = growth.record()
        corpus = stage.corpus.submit(session)
        old_tasks = stage.tasks.submit(session, corpus)
        tasks = stage.pool.submit(session, corpus, old_tasks, **growth.inputs)
        finished(corpus, old_tasks, tasks)
        if (refusal := stage.undecidable.submit(session, growth, tasks).result()) is not None:
            return publish(session, refusal)

        demonstrations = {growth.role(0, session.config): stage.teach.submit(session, corpus, old_tasks)}
        for one in growth.versions:
            taught = stage.teach.submit(session, corpus, old_tasks, f"{pool}-v{one.version}", additions=one.ref)
            demonstrations[growth.role(one.version, session.config)] = taught
        curated = stage.curate.submit(session, tasks, **demonstrations)

        base = stage.base.submit(session, corpus)
        sft = stage.sft.submit(session, growth.start(session.config) or base, curated)
        selected = stage.select.submit(session, tasks, corpus, policy=sft, base=base)
        rl = stage.rl.submit(session, sft, tasks, selected, corpus)
        finished(*demonstrations.values(), curated, base, sft, selected, rl)

        held_out = {"tasks": tasks, "corpus": corpus}
        challenger, variant = (rl, "policy:rl") if rl.result() else (sft, "policy")
        challenger_scores = stage.evaluate.submit(session, variant, model=challenger, **held_out)
        champion = stage.champion.submit(session, challenger).result()
        if champion is None:
            rival = base
            rival_scores = stage.evaluate.submit(session, "base", model=base, demonstrations=curated, **held_out)
        else:
            rival = champion.ref
            rival_scores = stage.evaluate.submit(session, "champion", model=rival, **held_out)
        finished(challenger_scores, rival_scores)
        prepare()
        decision = stage.register.submit(session, challenger, challenger_scores, rival, rival_scores, tasks=tasks)
        finished(decision)

        return publish(session)


if __name__ == "__main__":
    retrain()
