"""Prefect tasks: one a stage, with retries, time-outs, tags, live progress and the artifact's reference. No logic."""

from tasks.stages import (
    base,
    champion,
    corpus,
    curate,
    diagnose,
    evaluate,
    growth,
    pool,
    present_champion,
    register,
    rl,
    select,
    sft,
    tasks,
    teach,
    undecidable,
)

__all__ = [
    "base",
    "champion",
    "corpus",
    "curate",
    "diagnose",
    "evaluate",
    "growth",
    "pool",
    "present_champion",
    "register",
    "rl",
    "select",
    "sft",
    "tasks",
    "teach",
    "undecidable",
]
