"""Tools that answer later than they could: the latency of a web, for studies of scheduling on a local corpus."""

import time
from collections.abc import Mapping
from dataclasses import replace

from afm_core.data import Tag
from afm_core.tools.protocol import Tool, ToolResult


class DelayedTool:
    """A tool whose every call first waits in its own thread; the wait counts in the result's seconds."""

    def __init__(self, tool: Tool, seconds: float) -> None:
        self.name = tool.name
        self.description = tool.description
        self._tool = tool
        self._seconds = seconds

    def call(self, argument: str) -> ToolResult:
        """Wait, then run the tool."""
        time.sleep(self._seconds)
        result = self._tool.call(argument)
        return replace(result, seconds=result.seconds + self._seconds)


def delayed(tools: Mapping[Tag, Tool], seconds: float) -> dict[Tag, Tool]:
    """The tools, each call `seconds` later; 0 leaves them as they are."""
    return {tag: DelayedTool(tool, seconds) if seconds else tool for tag, tool in tools.items()}
