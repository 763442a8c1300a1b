"""Runs one stage as a fresh process, and keeps the record of a run. `afm stage` is the other end."""

from afm_core.execution.events import Event, Failed, FailureKind, Finished, Progress, Submitted, Waiting
from afm_core.execution.experts import checked_domains, diagnosis_overrides, expert_inputs
from afm_core.execution.model_reference import find_model, names_source
from afm_core.execution.pace import duration
from afm_core.execution.preflight import open_run_store, store_uri
from afm_core.execution.profile_tasks import known_to
from afm_core.execution.retraining import Retraining, plan_retraining
from afm_core.execution.road import RoadStage, road_stage, teaching_stage
from afm_core.execution.runner import StageFailed
from afm_core.execution.runs import (
    RunDirectory,
    RunLinks,
    RunRecord,
    RunStatus,
    StageProgress,
    StageRecord,
    find_run,
    list_runs,
    new_run_id,
    run_json,
)
from afm_core.execution.scratch import private_scratch
from afm_core.execution.session import RunSession, is_retryable
from afm_core.execution.spend import Spend, spend_of
from afm_core.execution.stages import STAGES, Stage, key_of, stage_named

__all__ = [
    "STAGES",
    "Event",
    "Failed",
    "FailureKind",
    "Finished",
    "Progress",
    "Retraining",
    "RoadStage",
    "RunDirectory",
    "RunLinks",
    "RunRecord",
    "RunSession",
    "RunStatus",
    "Spend",
    "Stage",
    "StageFailed",
    "StageProgress",
    "StageRecord",
    "Submitted",
    "Waiting",
    "checked_domains",
    "diagnosis_overrides",
    "duration",
    "expert_inputs",
    "find_model",
    "find_run",
    "is_retryable",
    "key_of",
    "known_to",
    "list_runs",
    "names_source",
    "new_run_id",
    "open_run_store",
    "plan_retraining",
    "private_scratch",
    "road_stage",
    "run_json",
    "spend_of",
    "stage_named",
    "store_uri",
    "teaching_stage",
]
