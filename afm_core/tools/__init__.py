"""What an agent can do: search and read a frozen corpus. Every tool answers malformed calls instead of raising."""

from afm_core.tools.arguments import ARGUMENT_NAMES, call_with_json
from afm_core.tools.build import CHARACTERS_PER_TOKEN, TOOL_NAMES, build_tools, check_tool_name, check_tools
from afm_core.tools.index import Hit, SentenceIndex
from afm_core.tools.local import (
    LONGEST_ARGUMENT,
    NO_RESULTS,
    PAGE_SEPARATOR,
    ReadLocal,
    SearchLocal,
    result_line,
)
from afm_core.tools.protocol import Tool, ToolResult, ToolStatus
from afm_core.tools.text import CUT_MARK, contains_words, cut, fold, sentences, without_title, words

__all__ = [
    "ARGUMENT_NAMES",
    "CHARACTERS_PER_TOKEN",
    "CUT_MARK",
    "LONGEST_ARGUMENT",
    "NO_RESULTS",
    "PAGE_SEPARATOR",
    "TOOL_NAMES",
    "Hit",
    "ReadLocal",
    "SearchLocal",
    "SentenceIndex",
    "Tool",
    "ToolResult",
    "ToolStatus",
    "build_tools",
    "call_with_json",
    "check_tool_name",
    "check_tools",
    "contains_words",
    "cut",
    "fold",
    "result_line",
    "sentences",
    "without_title",
    "words",
]
