"""The end of a run: its record, its report, and what the Prefect UI shows of it."""

import importlib
import threading
from typing import Any

from prefect import task
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from afm_core.evaluation import models_summary
from afm_core.evaluation.report import collect, evaluated_models, render
from afm_core.execution import RunSession, RunStatus, run_json
from afm_core.execution.pages import model_rows, sample_page, stage_rows
from afm_core.tracking import run_page, tracking_file


def prepare() -> None:
    """Import what a report reads tokenizers with (over a second) while a run's last tasks wait for their servers.

    Not earlier: a run's process should be small while its model trains.
    """
    threading.Thread(target=importlib.import_module, args=("transformers",), daemon=True).start()


@task(cache_policy=NO_CACHE, persist_result=False, task_run_name="publish")
def publish(session: RunSession, champion: dict[str, Any] | None = None) -> dict[str, Any]:
    """Fill the record, render the report, show both in the Prefect run; returns the run's JSON document.

    `champion`: what a run that was refused before its gate says of it.
    """
    record = session.record
    decision = next((one for one in record.stages if one.name == "register"), None)
    tracking = session.config.tracking
    page = run_page(tracking, record.run_id)
    record.links.mlflow_run = page.id if page else None
    record.links.mlflow_file = tracking_file(tracking)
    record = session.finish(
        status=RunStatus.COMPLETED,
        models=models_summary(evaluated_models(record.model_dump(mode="json"), session.store)),
        champion=champion
        if decision is None
        else {name: decision.metrics.get(name) for name in ("outcome", "champion", "version", "reason")},
        report=str(session.directory.report),
    )
    report = collect(record.model_dump(mode="json"), session.store)
    session.directory.report.write_text(render(report), encoding="utf-8")
    title = f"Run {record.run_id}"
    create_table_artifact(key="stages", table=stage_rows(record.stages), description=title)
    if record.models:
        create_table_artifact(key="result", table=model_rows(record.models), description=f"{title}: accuracy")
    if sample := sample_page(report.trajectories):
        create_markdown_artifact(key="sample", markdown=sample, description=f"{title}: a few trajectories")
    create_link_artifact(key="report", link=session.directory.report.as_uri(), link_text=record.report)
    if page:
        create_link_artifact(key="mlflow-run", link=page.url, link_text=f"MLflow run {page.id}")
    return run_json(record)
