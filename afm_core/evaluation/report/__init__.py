"""The report of a run: one self-contained HTML file (`collect` reads the store, `render` makes the page)."""

from afm_core.evaluation.report.collect import collect, evaluated_models
from afm_core.evaluation.report.data import (
    CurveView,
    ElementView,
    EvaluationView,
    ReportData,
    RoadView,
    StageView,
    TokenView,
    TrajectoryView,
)
from afm_core.evaluation.report.learning import RlView
from afm_core.evaluation.report.page import headline, render, write_report
from afm_core.evaluation.results import result_table

__all__ = [
    "CurveView",
    "ElementView",
    "EvaluationView",
    "ReportData",
    "RlView",
    "RoadView",
    "StageView",
    "TokenView",
    "TrajectoryView",
    "collect",
    "evaluated_models",
    "headline",
    "render",
    "result_table",
    "write_report",
]
