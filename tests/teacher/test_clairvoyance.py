"""The check that the teacher says nothing unseen: it passes honest runs and fails doctored ones."""

import pytest

from afm_core.config import AgentConfig, TeacherConfig
from afm_core.data import Origin, Segment, Tag
from afm_core.teacher import check_clairvoyance, convert, demonstrate


@pytest.fixture
def honest(chain_task, tools):
    return convert(demonstrate(chain_task, tools, TeacherConfig(mistake_rate=0.0), AgentConfig()), chain_task)


def doctored(trajectory, number, text):
    segments = list(trajectory.segments)
    segments[number] = segments[number].model_copy(update={"text": text})
    return trajectory.model_copy(update={"segments": tuple(segments)})


def place(trajectory, tag):
    return next(number for number, segment in enumerate(trajectory.segments) if segment.tag == tag)


@pytest.mark.parametrize(
    ("tag", "text", "word"),
    [
        (Tag.THINK, "Three steps to Kenya.", "Kenya"),
        (Tag.PLAN, "Moi Airport: city, country, currency shilling", "shilling"),
        (Tag.WEB_SEARCH, "Mombasa city", "Mombasa"),
        (Tag.WEB_SEARCH, "Moi Airport city 1208333", "1208333"),
        (Tag.WEB_SEARCH, "moi airport kenyan shilling", "Kenyan shilling"),
        (Tag.PLAN, "Moi Airport: Tanzania", "Tanzania"),
    ],
)
def test_an_unseen_name_or_value_is_found(honest, chain_task, tag, text, word):
    problems = check_clairvoyance(doctored(honest, place(honest, tag), text), chain_task)
    assert any(repr(word) in problem for problem in problems)


def test_an_answer_given_before_it_was_seen_is_found(honest, chain_task):
    last_search = max(number for number, segment in enumerate(honest.segments) if segment.tag == Tag.OBSERVATION)
    blind = doctored(honest, last_search, "No results.")
    problems = check_clairvoyance(blind, chain_task)
    assert any("(answer): 'Kenyan shilling'" in problem for problem in problems)


def test_what_was_seen_may_be_said(honest, chain_task):
    assert check_clairvoyance(honest, chain_task) == []


def test_a_score_is_no_knowledge_but_a_number_elsewhere_is(honest, chain_task):
    number = place(honest, Tag.DOUBLE_CHECK)
    assert check_clairvoyance(doctored(honest, number, "Supported by Kenya. Score: 3"), chain_task) == []
    assert check_clairvoyance(doctored(honest, number, "Supported by Kenya 3. Score: 3"), chain_task) != []


def test_a_sampled_guess_is_the_policys_own(honest, chain_task):
    guess = Segment(origin=Origin.SAMPLED, text="<think>Atlantis</think>")
    guessed = honest.model_copy(update={"segments": (guess, *honest.segments)})
    assert check_clairvoyance(guessed, chain_task) == []
