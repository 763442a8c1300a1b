"""The Chain-of-Agents language: tags, grammar (a checked state machine), parser, renderer, prompts, file
formats.

One trajectory is one assistant turn in which a model plays every agent; tool results are spliced in as
observations.
"""

from afm_core.coa.escape import escape, holds_tags, unescape
from afm_core.coa.grammar import Grammar, GrammarState
from afm_core.coa.parser import Element, Parsed, parse
from afm_core.coa.profiles import grammar_for, stop_strings
from afm_core.coa.prompts import closed_book_answer, closed_book_prompt, prompt
from afm_core.coa.readings import (
    double_check_score,
    json_arguments,
    python_and_stdin,
    same_answer,
    says_poor,
)
from afm_core.coa.traces import check_text, check_trajectory, elements_of, render, render_trajectory
from afm_core.coa.violations import Violation, ViolationCode

__all__ = [
    "Element",
    "Grammar",
    "GrammarState",
    "Parsed",
    "Violation",
    "ViolationCode",
    "check_text",
    "check_trajectory",
    "closed_book_answer",
    "closed_book_prompt",
    "double_check_score",
    "elements_of",
    "escape",
    "grammar_for",
    "holds_tags",
    "json_arguments",
    "parse",
    "prompt",
    "python_and_stdin",
    "render",
    "render_trajectory",
    "same_answer",
    "says_poor",
    "stop_strings",
    "unescape",
]
