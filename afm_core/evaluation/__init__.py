"""Evaluation: honest figures, their uncertainty, the promotion gate, and the report of a run.

Protocols say under which conditions a task is put (protocols.py), rows are what is measured (rows.py),
metrics.py turns rows into accuracy with an interval, gate.py decides on promotion, results.py prints a run's
end, and the report package renders one self-contained HTML file. stages.py holds the two stages, `evaluate`
and `register`.
"""

from afm_core.evaluation.gate import Decision, Outcome, Side, decide
from afm_core.evaluation.gate_retrained import decide_retrained, tasks_needed, too_few
from afm_core.evaluation.metrics import figures, find_entry, summarise, wilson_interval
from afm_core.evaluation.protocols import Protocol, Trial, Variant, trials_of, variant_of
from afm_core.evaluation.results import headline_entry, load_summary, models_summary, result_table
from afm_core.evaluation.rows import EvaluationRow, row_of, rows_from_table, rows_table
from afm_core.evaluation.sampling import stratified_sample, task_set_digest

__all__ = [
    "Decision",
    "EvaluationRow",
    "Outcome",
    "Protocol",
    "Side",
    "Trial",
    "Variant",
    "decide",
    "decide_retrained",
    "figures",
    "find_entry",
    "headline_entry",
    "load_summary",
    "models_summary",
    "result_table",
    "row_of",
    "rows_from_table",
    "rows_table",
    "stratified_sample",
    "summarise",
    "task_set_digest",
    "tasks_needed",
    "too_few",
    "trials_of",
    "variant_of",
    "wilson_interval",
]
