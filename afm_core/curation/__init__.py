"""Curation: from demonstrations to the training mix, with one reason for every row that is not kept.

Order: leaks, status, grammar, right answer, complexity, redundant calls, clairvoyance (all pure functions of
a row); then duplicates, reflection, the guessable cap and copies of corrections (functions of all rows,
ordered by id). `in == kept + rejected`, always; copies are counted apart.
"""

from afm_core.curation.leaks import LeakIndex
from afm_core.curation.mixing import Decision, decide
from afm_core.curation.reasons import DECISION_ORDER, Rejection, RejectReason
from afm_core.curation.rows import RowFacts, interactions, judge, judge_row
from afm_core.curation.stages import curate_rows, write_counts

__all__ = [
    "DECISION_ORDER",
    "Decision",
    "LeakIndex",
    "RejectReason",
    "Rejection",
    "RowFacts",
    "curate_rows",
    "decide",
    "interactions",
    "judge",
    "judge_row",
    "write_counts",
]
