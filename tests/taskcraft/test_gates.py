"""The deterministic gates refuse what a careless generator would let through."""

from typing import Any

import pytest

from afm_core.data import AgentTask, Document, Evidence, SolutionStep
from afm_core.taskcraft import Rejection, check_task

BERN = Document.create(id="city-1", title="Bern", text="Bern has a population of 121631. Bern is old.")
SPAN = Evidence(document_id="city-1", sha256=BERN.sha256, start=25, end=31)
STEP = SolutionStep(relation="population", subject="Bern", value="121631", document_id="city-1")


def _check(
    question: str = "How many people live in Bern?", answers: tuple[str, ...] = ("121631",), **fields: Any
) -> Any:
    task = AgentTask.create(question, answers, **{"solution": (STEP,), "evidence": (SPAN,), **fields})
    return check_task(task, {"city-1": BERN})


def test_a_true_task_passes() -> None:
    assert _check() is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"evidence": (SPAN.model_copy(update={"start": 24}),)}, Rejection.BAD_EVIDENCE),
        ({"evidence": (SPAN.model_copy(update={"sha256": "0" * 64}),)}, Rejection.BAD_EVIDENCE),
        ({"evidence": (SPAN.model_copy(update={"document_id": "city-2"}),)}, Rejection.BAD_EVIDENCE),
        ({"evidence": ()}, Rejection.BAD_EVIDENCE),
        ({"question": "Do 121631 people live in Bern?"}, Rejection.LEAK),
        ({"question": "How many people live there?"}, Rejection.NOT_ASKED),
        ({"question": "How many people live in Bern " + "now " * 30}, Rejection.TOO_LONG),
    ],
)
def test_each_fault_has_its_reason(fields: dict[str, Any], reason: Rejection) -> None:
    assert _check(**fields) == reason


def test_an_earlier_value_in_the_question_is_a_shortcut() -> None:
    text = "Zed Airport serves the city Bern."
    airport = Document.create(id="airport-1", title="Zed Airport", text=text)
    first = SolutionStep(relation="city", subject="Zed Airport", value="Bern", document_id="airport-1")
    task = AgentTask.create(
        "How many people live in Bern, the city of Zed Airport?",
        ("121631",),
        solution=(first, STEP.model_copy(update={"inputs": (0,)})),
        evidence=(Evidence(document_id="airport-1", sha256=airport.sha256, start=28, end=32), SPAN),
    )
    assert check_task(task, {"city-1": BERN, "airport-1": airport}) == Rejection.SHORTCUT


def test_a_time_zone_that_spells_the_city_asked_for_is_a_leak() -> None:
    text = "Kabul has the time zone Asia/Kabul."
    document = Document.create(id="city-2", title="Kabul", text=text)
    step = SolutionStep(relation="time zone", subject="Kabul", value="Asia/Kabul", document_id="city-2")
    evidence = Evidence(document_id="city-2", sha256=document.sha256, start=24, end=34)
    task = AgentTask.create("Which time zone has Kabul?", ("Asia/Kabul",), solution=(step,), evidence=(evidence,))
    assert check_task(task, {"city-2": document}) == Rejection.LEAK


def test_a_value_spelled_by_the_value_before_it_is_a_shortcut() -> None:
    """Who knows that the code is Bern Airport's needs no look-up to name its city."""
    text = "Bern Airport has the airport code BRN. Bern Airport serves the city Bern."
    document = Document.create(id="airport-2", title="Bern Airport", text=text)
    fields = {"document_id": "airport-2"}
    steps = (
        SolutionStep(relation="airport", subject="BRN", value="Bern Airport", **fields),
        SolutionStep(relation="city", subject="Bern Airport", value="Bern", inputs=(0,), **fields),
    )
    spans = tuple(
        Evidence(document_id="airport-2", sha256=document.sha256, start=start, end=end)
        for start, end in ((0, 12), (text.index("city Bern") + 5, text.index("city Bern") + 9))
    )
    task = AgentTask.create("Which city does BRN serve?", ("Bern",), solution=steps, evidence=spans)
    assert check_task(task, {"airport-2": document}) == Rejection.SHORTCUT
