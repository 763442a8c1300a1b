"""A world of a few documents, its tools, and tasks over it."""

import pytest

from afm_core.config import AgentConfig, GrammarName
from afm_core.data import AgentTask, Difficulty, Document, Operation, SolutionStep, Split, Tag
from afm_core.tools import build_tools


def _document(title: str, text: str, component: str = "kenya") -> Document:
    return Document.create(title.casefold().replace(" ", "-"), title, text, component=component)


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    return [
        _document("Mombasa", "Mombasa is a city in the country Kenya. Mombasa has a population of 1208333."),
        _document("Nairobi", "Nairobi is a city in the country Kenya. Nairobi has a population of 4397073."),
        _document("Kenya", "Kenya has the capital Nairobi. Kenya has the currency Kenyan shilling."),
        _document("Moi Airport", "Moi Airport serves the city Mombasa. Moi Airport has the airport code MBA."),
        _document("Eldoret", "Eldoret is a city in the country Kenya. Eldoret has the time zone Africa/Nairobi."),
        _document("Lima", "Lima is a city in the country Peru. Lima has a population of 7737002.", "peru"),
        _document("Peru", "Peru has the capital Lima. Peru has the currency Sol.", "peru"),
    ]


@pytest.fixture(scope="session")
def tools(documents, tmp_path_factory):
    return build_tools(AgentConfig(), documents, tmp_path_factory.mktemp("index"), None)


@pytest.fixture(scope="session")
def wiki_agent() -> AgentConfig:
    return AgentConfig(grammar=GrammarName.MHQA, tools={"wiki_search": "search_local"})


@pytest.fixture(scope="session")
def chain_task() -> AgentTask:
    """Three hops: the airport's city, its country, the currency."""
    return AgentTask.create(
        "What is the currency of the country of the city served by Moi Airport?",
        ("Kenyan shilling",),
        solution=(
            SolutionStep(relation="city", subject="Moi Airport", value="Mombasa", document_id="moi-airport"),
            SolutionStep(relation="country", subject="Mombasa", value="Kenya", document_id="mombasa", inputs=(0,)),
            SolutionStep(relation="currency", subject="Kenya", value="Kenyan shilling", inputs=(1,)),
        ),
        difficulty=Difficulty(hops=3),
        component="kenya",
    )


@pytest.fixture(scope="session")
def single_task() -> AgentTask:
    return AgentTask.create(
        "What is the capital of Kenya?",
        ("Nairobi",),
        solution=(SolutionStep(relation="capital", subject="Kenya", value="Nairobi"),),
        component="kenya",
    )


@pytest.fixture(scope="session")
def comparison_task() -> AgentTask:
    return AgentTask.create(
        "Which city has more people, Mombasa or Nairobi?",
        ("Nairobi",),
        solution=(
            SolutionStep(relation="population", subject="Mombasa", value="1208333"),
            SolutionStep(relation="population", subject="Nairobi", value="4397073"),
            SolutionStep(operation=Operation.LARGER, relation="population", subject="", value="Nairobi", inputs=(0, 1)),
        ),
        component="kenya",
    )


@pytest.fixture(scope="session")
def held_out_task() -> AgentTask:
    return AgentTask.create(
        "What is the currency of the country of Lima?",
        ("Sol",),
        solution=(
            SolutionStep(relation="country", subject="Lima", value="Peru", document_id="lima"),
            SolutionStep(relation="currency", subject="Peru", value="Sol", document_id="peru", inputs=(0,)),
        ),
        component="peru",
        split=Split.TEST,
    )


@pytest.fixture(scope="session")
def search_tag() -> Tag:
    return Tag.WEB_SEARCH
