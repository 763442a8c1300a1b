"""The registered champion, measured on a profile's held-out tasks. Cached like every stage: `refresh` measures again.

corpus ─► tasks ─► evaluate ◄─ champion
"""

from typing import Any

from prefect import flow, get_run_logger

import tasks as stage
from afm_core.execution import RoadStage
from flows.parameters import Override, ProfileName, StageName
from flows.publish import publish
from flows.session import open_session


@flow(name="evaluate-champion", flow_run_name="champion on {profile}", persist_result=False)
def evaluate_champion(
    profile: ProfileName = "laptop",
    overrides: list[Override] | None = None,
    config_file: str | None = None,
    refresh: list[StageName] | None = None,
    run_id: str | None = None,
) -> dict[str, Any]:
    """Measure the champion.

    Args:
        profile: a shipped profile, see configs/.
        overrides: `section.key=value` over the profile.
        config_file: a TOML file between the two.
        refresh: stages to make anew although they are cached, e.g. evaluate.
        run_id: name of the run; made up if not given.

    Returns:
        The run's record; without a champion nothing was measured, which is no failure.
    """
    with open_session(profile, config_file, overrides or [], refresh or [], run_id, RoadStage.SFT) as session:
        champion = stage.present_champion(session)
        if champion is None:
            get_run_logger().warning("no model is registered as champion: nothing to measure")
            return publish(session)
        corpus = stage.corpus.submit(session)
        tasks = stage.tasks.submit(session, corpus)
        stage.evaluate.submit(session, "champion", model=champion.ref, tasks=tasks, corpus=corpus).result()
        return publish(session)


if __name__ == "__main__":
    evaluate_champion()
