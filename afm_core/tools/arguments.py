"""From a structured call (`{"query": "..."}`) to the text that a tool takes; anything malformed is never dispatched."""

import json

from afm_core.tools.local import ReadLocal, SearchLocal
from afm_core.tools.protocol import Tool, ToolResult, ToolStatus

ARGUMENT_NAMES: dict[str, tuple[str, ...]] = {SearchLocal.name: ("query",), ReadLocal.name: ("title", "url")}
"""Accepted keys of a tool's one argument; the first is the one to use."""


def call_with_json(tool: Tool, arguments: str) -> ToolResult:
    """Call a tool with JSON arguments: an object with its one argument, or just a text.

    Malformed JSON, a wrong key or a wrong type gives BAD_ARGUMENTS and the tool is not called.
    """
    names = ARGUMENT_NAMES.get(tool.name, ("argument",))
    example = f'{{"{names[0]}": "..."}}'
    try:
        value = json.loads(arguments)
    except (json.JSONDecodeError, RecursionError) as error:
        return _bad(f"The arguments are not valid JSON ({error}); expected {example}.")
    if isinstance(value, dict):
        if len(value) != 1 or next(iter(value)) not in names:
            given = ", ".join(sorted(map(str, value))) or "nothing"
            return _bad(f"{tool.name} takes {example}; got {given}.")
        value = next(iter(value.values()))
    if not isinstance(value, str):
        return _bad(f"{tool.name} takes a text, e.g. {example}; got {type(value).__name__}.")
    return tool.call(value)


def _bad(text: str) -> ToolResult:
    return ToolResult(ToolStatus.BAD_ARGUMENTS, text)
