"""A scripted engine and a scripted tool."""

import pytest
from scripted_engine import ScriptedEngine

from afm_core.data import AgentTask, Tag
from afm_core.tools.protocol import ToolResult, ToolStatus


class ScriptedTool:
    """Answers by argument: a text, a ToolResult, or an exception to raise."""

    name = "scripted"
    description = "scripted"

    def __init__(self, answers=None):
        self.answers = answers or {}
        self.calls = []

    def call(self, argument):
        self.calls.append(argument)
        answer = self.answers.get(argument, f"nothing about {argument}")
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, ToolResult) else ToolResult(ToolStatus.OK, answer)


@pytest.fixture
def task_of():
    return lambda question, answer="42": AgentTask.create(question, (answer,))


@pytest.fixture
def engine_of():
    return ScriptedEngine


@pytest.fixture
def tool_of():
    return ScriptedTool


@pytest.fixture
def good_script():
    """A legal episode of the web profile with one search."""
    return [
        "<think>t</think><plan>p</plan><think>t</think><web_search>query</web_search>",
        "<think>t</think><suggested_answer>42</suggested_answer><think>t</think><double_check>Score: 4</double_check>"
        "<answer>42</answer>",
    ]


@pytest.fixture
def web_search():
    return Tag.WEB_SEARCH
