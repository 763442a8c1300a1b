"""The end of a run: its record, its report, and a result table in the Prefect UI."""

from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from afm_core.evaluation import models_summary
from afm_core.evaluation.report import collect, evaluated_models, render
from afm_core.execution import RunRecord, RunSession, RunStatus, run_json


@task(cache_policy=NO_CACHE, persist_result=False)
def publish(session: RunSession, champion: dict[str, Any] | None = None) -> dict[str, Any]:
    """Fill the record, render the report, show both in the Prefect run; returns the run's JSON document.

    `champion`: what a run that was refused before its gate says of it.
    """
    record = session.record
    decision = next((one for one in record.stages if one.name == "register"), None)
    record = session.finish(
        status=RunStatus.COMPLETED,
        models=models_summary(evaluated_models(record.model_dump(mode="json"), session.store)),
        champion=champion
        if decision is None
        else {name: decision.metrics.get(name) for name in ("outcome", "champion", "version", "reason")},
        report=str(session.directory.report),
    )
    session.directory.report.write_text(
        render(collect(record.model_dump(mode="json"), session.store)), encoding="utf-8"
    )
    create_table_artifact(key="result", table=_rows(record), description=f"Run {record.run_id}")
    create_markdown_artifact(key="report", markdown=f"Report of run `{record.run_id}`: `{record.report}`")
    return run_json(record)


def _rows(record: RunRecord) -> list[dict[str, Any]]:
    return [
        {
            "stage": stage.name,
            "cached": stage.cached,
            "seconds": round(stage.seconds, 1),
            "artifact": f"{stage.artifact.kind}:{stage.artifact.digest[:12]}",
        }
        for stage in record.stages
    ]
