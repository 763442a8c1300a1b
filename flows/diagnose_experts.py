"""Which experts of a mixture-of-experts model a domain uses: figures, selections to train, and a page.

texts of several domains ─► diagnose ◄─ model (of the store, or brought there by the stage base)
"""

from typing import Any

from prefect import flow

import tasks as stage
from afm_core.execution import RoadStage, checked_domains, diagnosis_overrides, find_model, names_source
from flows.parameters import Domains, ModelName, Override, ProfileName, StageName
from flows.publish import publish
from flows.session import open_session


@flow(name="diagnose-experts", flow_run_name="experts of {model}", persist_result=False)
def diagnose_experts(
    model: ModelName,
    domains: Domains | None = None,
    profile: ProfileName = "laptop",
    overrides: list[Override] | None = None,
    config_file: str | None = None,
    refresh: list[StageName] | None = None,
    run_id: str | None = None,
) -> dict[str, Any]:
    """Diagnose a model's experts.

    Args:
        model: champion, a digest, or a source: a directory, s3://bucket/path, a hub id.
        domains: name -> file of texts, beside those of the configuration (diagnose.domains).
        profile: a shipped profile, see configs/.
        overrides: `section.key=value` over the profile.
        config_file: a TOML file between the two.
        refresh: stages to make anew although they are cached.
        run_id: name of the run; made up if not given.

    Returns:
        The run's record; its stage `diagnose` has the artifact.
    """
    asked = [*(overrides or []), *diagnosis_overrides(model, domains or {})]
    with open_session(profile, config_file, asked, refresh or [], run_id, RoadStage.BASE) as session:
        session.stages |= {"diagnose"}
        session.record.parameters["diagnosed"] = model
        checked_domains(session.config)
        if names_source(model):
            found = stage.base.submit(session, None).result()
        else:
            found = find_model(session.store, session.config, model)
        stage.diagnose.submit(session, found).result()
        return publish(session)


if __name__ == "__main__":
    diagnose_experts(model="champion")
