"""The always-search baseline: one search, one page, one rule."""

import pytest

from afm_core.data import AgentTask, Status, Tag
from afm_core.evaluation.baselines import always_search, best_phrase, phrases
from afm_core.tools.protocol import ToolResult, ToolStatus


class Scripted:
    """A tool that answers from a table and notes what it was asked."""

    name = description = "scripted"

    def __init__(self, answers, status=ToolStatus.OK):
        self.answers, self.status, self.asked = answers, status, []

    def call(self, argument):
        self.asked.append(argument)
        return ToolResult(self.status, self.answers.get(argument, ""))


QUESTION = "What is the capital of Finland?"
TASK = AgentTask.create(QUESTION, ("Helsinki",))


def test_it_searches_reads_the_first_page_and_answers():
    search = Scripted({QUESTION: "Finland: has the capital Helsinki.\nTampere: is a city in Finland."})
    read = Scripted({"Finland": "Finland lies in Europe. Finland has the capital Helsinki. Its domain is FI."})
    trajectory = always_search(TASK, {Tag.WEB_SEARCH: search, Tag.CRAWL_PAGE: read}, "web")
    assert (search.asked, read.asked) == ([QUESTION], ["Finland"])
    assert trajectory.answer == "Helsinki"
    assert trajectory.usage.tool_calls == 2


def test_it_answers_nothing_when_nothing_is_found():
    trajectory = always_search(TASK, {Tag.WEB_SEARCH: Scripted({}, ToolStatus.NOT_FOUND)}, "web")
    assert (trajectory.answer, trajectory.status) == (None, Status.COMPLETED)


def test_a_broken_tool_is_not_its_fault():
    trajectory = always_search(TASK, {Tag.WEB_SEARCH: Scripted({}, ToolStatus.INFRA_ERROR)}, "web")
    assert trajectory.status is Status.TOOL_ERROR


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("It has 1,234.5 people and Port of Spain.", ["It", "1,234.5", "Port of Spain"]),
        ("the city Åre lies at -3 metres", ["Åre", "-3"]),
        ("nothing here", []),
    ],
)
def test_phrases(sentence, found):
    assert phrases(sentence) == found


def test_words_of_the_question_are_no_answer():
    assert best_phrase("Where is Finland?", "Finland is Finland.") is None
    assert best_phrase("Where is Finland?", "") is None
