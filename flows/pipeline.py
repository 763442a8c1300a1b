"""The whole road: documents to a registered agent foundation model.

    corpus ─► tasks ─► teach ─► curate ─► sft ─► select ─► rl ─► evaluate ─► register
                                  base ──┘  └─ beside it: base and SFT model, baselines without a model, the champion

Every arrow is an artifact reference; every stage is resumable and cached by its content (see docs/concepts.md). A run
that ends earlier (`until`) submits the same road: stages beyond its end give nothing.
"""

from typing import Any

from prefect import flow
from prefect.futures import PrefectFuture
from prefect.task_runners import ThreadPoolTaskRunner

import tasks as stage
from afm_core.execution import RoadStage
from flows.parameters import Override, ProfileName, StageName
from flows.publish import prepare, publish
from flows.session import open_session


@flow(
    name="pipeline",
    flow_run_name="{profile}",
    persist_result=False,
    task_runner=ThreadPoolTaskRunner(max_workers=8),  # type: ignore[arg-type]
)
def pipeline(
    profile: ProfileName = "laptop",
    overrides: list[Override] | None = None,
    config_file: str | None = None,
    refresh: list[StageName] | None = None,
    run_id: str | None = None,
    until: RoadStage = RoadStage.RL,
) -> dict[str, Any]:
    """Turn documents into a registered model.

    Args:
        profile: a shipped profile, see configs/.
        overrides: `section.key=value` over the profile.
        config_file: a TOML file between the two.
        refresh: stages to make anew although they are cached.
        run_id: name of the run; made up if not given.
        until: the last stage; from sft on, what was trained is evaluated and registered.

    Returns:
        The run's record: status, stages, models, champion and the report's path.
    """
    with open_session(profile, config_file, overrides or [], refresh or [], run_id, until) as session:
        corpus = stage.corpus.submit(session)
        tasks = stage.tasks.submit(session, corpus)

        demonstrations = stage.teach.submit(session, corpus, tasks)
        curated = stage.curate.submit(session, tasks, demonstrations=demonstrations)

        base = stage.base.submit(session, corpus)
        sft = stage.sft.submit(session, base, curated)

        selected = stage.select.submit(session, tasks, corpus, policy=sft, base=base)
        rl = stage.rl.submit(session, sft, tasks, selected, corpus)

        held_out = {"tasks": tasks, "corpus": corpus}
        rl_scores = stage.evaluate.submit(session, "policy:rl", model=rl, **held_out)
        sft_scores = stage.evaluate.submit(session, "policy", model=sft, **held_out)
        base_scores = stage.evaluate.submit(session, "base", model=base, demonstrations=curated, **held_out)
        reference = stage.evaluate.submit(session, "reference", **held_out)
        finished(corpus, tasks, demonstrations, curated, base, sft, selected, rl)
        finished(rl_scores, sft_scores, base_scores, reference)
        prepare()

        challenger, challenger_scores = (rl, rl_scores) if rl.result() else (sft, sft_scores)
        champion = stage.champion.submit(session, challenger).result()
        if champion is None:
            rival, rival_scores = base, base_scores
        elif champion.ref.digest == sft.result().digest:
            rival, rival_scores = sft, sft_scores
        else:
            rival = champion.ref
            rival_scores = stage.evaluate.submit(session, "champion", model=rival, **held_out)
        decision = stage.register.submit(session, challenger, challenger_scores, rival, rival_scores)
        finished(decision)

        return publish(session)


def finished(*futures: PrefectFuture[Any]) -> None:
    """Wait for all in order, so that the first error is the root and not one that followed from it."""
    for future in futures:
        future.result()


if __name__ == "__main__":
    pipeline()
