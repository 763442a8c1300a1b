"""Exact match: what is the same answer, what is not, and that nothing makes it fail."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.data import AgentTask, Verifier, VerifierKind
from afm_core.rewards import normalize, same, score

ANYTHING = st.text(max_size=60)


def task(*answers, kind=VerifierKind.EXACT_MATCH):
    return AgentTask.create("q?", answers, Verifier(kind=kind))


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("Paris", " paris. "),
        ("The Hague", "Hague"),
        ("São Tomé", "sao tome"),
        ("Guinea-Bissau", "Guinea Bissau"),
        ("Côte d'Ivoire", "Cote dIvoire"),
        ("U.S.", "US"),
        ("1234567", "1,234,567"),
        ("1,234 km", "1234 kilometres"),
        ("1,234 km", "1234"),
        ("5 million", "5,000,000"),
        ("12.50", "12.5"),
        ("50%", "50 percent"),
        ("$5 million", "5000000 dollars"),
        ("red | green", "Green|red"),
        ("東京", "東京"),
        ("the", "The"),
        ("A", "a"),
    ],
)
def test_equal_answers_are_the_same(gold, answer):
    assert same(gold, answer)
    assert same(answer, gold)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("Paris", "Paris or London"),
        ("Paris", "Paris | London"),
        ("1.5", "15"),
        ("-5", "5"),
        ("-5 apples", "5 apples"),
        ("$5", "£5"),
        ("5 million", "5"),
        ("5 km", "5 miles"),
        ("C++", "C"),
        ("か", "が"),
        ("red | red | green", "red | green"),
        ("747", "Boeing 747"),
        ("1,2", "12"),
        ("Niger", "Nigeria"),
    ],
)
def test_different_answers_are_not(gold, answer):
    assert not same(gold, answer)
    assert not same(answer, gold)


def test_any_acceptable_answer_counts():
    assert score(task("USA", "United States"), "the united states").value == 1.0
    assert score(task("USA", "United States"), "Canada").value == 0.0


@pytest.mark.parametrize("answer", [None, "", " \n"])
def test_no_answer_is_wrong(answer):
    assert score(task("x"), answer) == score(task("x"), None)
    assert score(task("x"), answer).value == 0.0


@pytest.mark.parametrize("kind", [VerifierKind.MATH, VerifierKind.UNIT_TESTS, VerifierKind.JUDGE])
def test_an_unsupported_verifier_is_unscored_and_never_zero(kind):
    result = score(task("x", kind=kind), "x")
    assert result.value is None
    assert kind.value in result.reason


@given(gold=ANYTHING.filter(str.strip), answer=ANYTHING)
def test_scoring_is_total_symmetric_and_deterministic(gold, answer):
    first = score(task(gold), answer)
    assert first.value in (0.0, 1.0)
    assert first == score(task(gold), answer)
    assert same(gold, answer) == same(answer, gold)


@given(text=ANYTHING.filter(str.strip))
def test_an_answer_equals_itself_whatever_its_case_and_spaces(text):
    assert score(task(text), f"  {text}\n").value == 1.0
    assert normalize(text)


def test_long_answers_cost_linear_time():
    for text in ("1" * 200_000, "a " * 100_000, ",1" * 100_000, "'" * 200_000, " " * 200_000 + "x"):
        assert score(task("x y"), text).value == 0.0
