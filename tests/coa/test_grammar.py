"""The grammar's tables: paper-shaped traces are valid, walks over the table are valid, edits of them are caught."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afm_core.coa import Element, ViolationCode, check_text, grammar_for, stop_strings
from afm_core.config import GrammarName
from afm_core.data import TOOL_TAGS, Origin, Tag

CODE = "\n```py\nprint(1)\n```\n"
RELEASED_WEB = (
    "<think> find the photo </think>\n<plan>\n1. search\n2. name the firm </plan>\n\n"
    "<think> search first </think> <web_search> photo of lights </web_search> "
    "<observation> Found 2 results: ... </observation>\n\n"
    "<think> progress? </think> <reflection> information_conflict : Good tool_effectiveness : Average "
    "trajectory_monitoring : Good </reflection>\n"
    "<think> read it </think><crawl_page>https://a.org | https://b.org</crawl_page>"
    "<observation>page</observation>\n\n"
    "<think> known </think><suggested_answer> Holabird </suggested_answer>\n"
    "<think> why 4 </think><double_check> The score this time is:4 </double_check>\n<answer> Holabird </answer>\n"
)
RELEASED_CODE = (
    f"<plan>1. compute</plan>\n<think>try</think>\n<code>{CODE}</code>\n"
    "<observation>[EXECUTED] Code exited with status 0.\n[STDOUT:BEGIN]\n1\n[STDOUT:END]</observation>\n\n"
    "<reflection>fine</reflection>\n<think>done</think>\n<answer>\\boxed{1}</answer>"
)
RELEASED_MHQA = (
    "<think>a</think><plan>b</plan><think>c</think><wiki_search>q</wiki_search><observation>o</observation>\n\n"
    "<think>d</think><reflection>search more</reflection><think>e</think><wiki_search>r</wiki_search>"
    "<observation>o</observation>\n\n<think>sure</think><answer>x|y</answer>"
)
LEAN_WEB = (
    "<think>a</think><plan>b</plan><web_search>q</web_search><observation>o</observation>"
    "<think>c</think><suggested_answer>X</suggested_answer><double_check>Score: 2</double_check>"
    "<plan>d</plan><crawl_page>t</crawl_page><observation>o</observation>"
    "<think>e</think><suggested_answer>Y</suggested_answer><double_check>Score: 4</double_check><answer>Y</answer>"
)
MULTI_TOOL = (
    f"<think>a</think><web_search>q</web_search><observation>o</observation><think>b</think><code>{CODE}</code>"
    '<observation>1</observation><think>c</think><visual_inspector>```json\n{"file_path": "a.png"}\n```'
    "</visual_inspector><observation>cat</observation><think>d</think><suggested_answer>X</suggested_answer>"
    "<double_check>credible</double_check><answer>x</answer>"
)


def codes(text: str, grammar: str) -> list[str]:
    return [violation.code.value for violation in check_text(text, grammar_for(grammar))]


@pytest.mark.parametrize(
    ("text", "grammar"),
    [
        (RELEASED_WEB, "web"),
        (RELEASED_CODE, "code"),
        (RELEASED_MHQA, "mhqa"),
        (LEAN_WEB, "web"),
        (MULTI_TOOL, "multi_tool"),
        (RELEASED_WEB.replace("web_search", "wiki_search"), "web"),
        ("<think>known by heart</think><answer>x</answer>", "mhqa"),
        ("<plan>p</plan><think>easy</think><answer>```py\npass\n```</answer>", "code"),
    ],
)
def test_traces_of_every_family_are_valid(text: str, grammar: str) -> None:
    assert codes(text, grammar) == []


@pytest.mark.parametrize(
    ("text", "grammar", "expected"),
    [
        (LEAN_WEB.replace("Score: 2</double_check><plan>d</plan>", "Score: 2</double_check>"), "web",
         ["no_replan_after_low_score"]),
        (LEAN_WEB.replace("<double_check>Score: 4</double_check>", ""), "web", ["forbidden_transition"]),
        (LEAN_WEB.replace("Score: 4", "Score: 1"), "web", ["answered_despite_low_score"]),
        (LEAN_WEB.replace("Score: 2", "Score: 3"), "web", ["no_answer_after_high_score"]),
        (LEAN_WEB.replace("<answer>Y", "<answer>Z"), "web", ["answer_differs_from_suggested"]),
        (LEAN_WEB.replace("<think>c</think>", ""), "web", ["missing_think"]),
        (LEAN_WEB.replace("<observation>o</observation><think>c", "<think>c"), "web", ["missing_observation"]),
        (LEAN_WEB + "<answer>Y</answer>", "web", ["text_after_answer"]),
        (LEAN_WEB + "\nBye.", "web", ["text_after_answer"]),
        (LEAN_WEB.replace("<answer>Y</answer>", ""), "web", ["missing_answer"]),
        (LEAN_WEB.replace("<plan>b</plan>", "<plan>b</plan><plan>b</plan>"), "web", ["forbidden_transition"]),
        (LEAN_WEB.replace("<plan>b</plan>", "<plan> </plan>"), "web", ["empty_element"]),
        (LEAN_WEB.replace("<plan>b</plan>", "<plan>b</plan>so"), "web", ["stray_text"]),
        (LEAN_WEB.replace("<plan>b</plan>", "<plan>b</plan><search>"), "web", ["unknown_tag"]),
        (LEAN_WEB.replace("<think>c", "<observation>x</observation><think>c"), "web", ["unexpected_observation"]),
        (LEAN_WEB.replace("web_search", "code"), "web", ["foreign_tag"]),
        (RELEASED_WEB.replace("Average", "poor"), "web", ["no_replan_after_poor"]),
        (RELEASED_CODE.replace("```py", ""), "code", ["malformed_code"]),
        (RELEASED_CODE.replace("<think>done</think>", ""), "code", ["missing_think"]),
        (RELEASED_CODE.replace("<reflection>fine</reflection>", ""), "code",
         ["forbidden_transition", "forbidden_transition"]),
        (RELEASED_CODE.replace("<reflection>fine</reflection>", "<reflection>fine</reflection><plan>p</plan>"),
         "code", ["second_plan"]),
        (RELEASED_CODE.replace("<plan>1. compute</plan>", ""), "code",
         ["forbidden_transition", "forbidden_transition"]),
        (RELEASED_MHQA.replace("<think>sure</think>", ""), "mhqa", ["missing_think"]),
        (MULTI_TOOL.replace('{"file_path": "a.png"}', "[1,"), "multi_tool", ["malformed_arguments"]),
    ],
)  # fmt: skip
def test_a_broken_rule_is_named(text: str, grammar: str, expected: list[str]) -> None:
    assert codes(text, grammar) == expected


def test_violations_name_the_element() -> None:
    (found,) = check_text(LEAN_WEB.replace("<answer>Y", "<answer>Z"), grammar_for("web"))
    assert found.segment == 13
    assert "'Y'" in found.message


def test_an_unreadable_score_leaves_the_table_to_decide() -> None:
    assert codes(LEAN_WEB.replace("Score: 4", "it fits all we read"), "web") == []


def test_an_observation_written_by_the_model_is_forged_and_does_not_count() -> None:
    state = grammar_for("web").start()
    assert not state.advance(Tag.THINK, "t")
    assert not state.advance(Tag.WEB_SEARCH, "q")
    forged = state.advance(Tag.OBSERVATION, "made up", origin=Origin.SAMPLED)
    assert [violation.code for violation in forged] == [ViolationCode.FORGED_OBSERVATION]
    assert state.allowed() == {Tag.OBSERVATION}
    assert not state.advance(Tag.OBSERVATION, "real", origin=Origin.TOOL)


def test_stop_strings_end_calls_answer_and_forgery() -> None:
    assert stop_strings(grammar_for("code")) == ("</code>", "</answer>", "<observation")
    assert "</web_search>" in stop_strings(grammar_for("web"))


def _text_of(tag: Tag) -> str:
    special = {
        Tag.CODE: CODE,
        Tag.VISUAL_INSPECTOR: '{"file_path": "x.png"}',
        Tag.DOUBLE_CHECK: "it fits",
        Tag.SUGGESTED_ANSWER: "A",
        Tag.ANSWER: "a",
    }
    return special.get(tag, "text")


@st.composite
def walks(draw: st.DrawFn) -> tuple[GrammarName, list[Element]]:
    """A walk over what the state machine allows, ended by an answer (or cut after 30 steps)."""
    name = draw(st.sampled_from(list(GrammarName)))
    state = grammar_for(name).start()
    elements: list[Element] = []
    while not state.finished and len(elements) < 30:
        tag = draw(st.sampled_from(sorted(state.allowed())))
        assert state.advance(tag, _text_of(tag)) == []
        elements.append(Element(tag, _text_of(tag), len(elements)))
    return name, elements


@given(walks())
@settings(max_examples=100, deadline=None)
def test_walks_over_the_table_are_valid(walk: tuple[GrammarName, list[Element]]) -> None:
    name, elements = walk
    expected = set() if elements[-1].tag is Tag.ANSWER else {ViolationCode.MISSING_ANSWER}
    if elements[-1].tag in TOOL_TAGS:
        expected.add(ViolationCode.MISSING_OBSERVATION)
    assert {violation.code for violation in grammar_for(name).check(elements)} == expected


@given(walks(), st.data())
@settings(max_examples=100, deadline=None)
def test_dropping_an_observation_or_the_answer_is_caught(
    walk: tuple[GrammarName, list[Element]], data: st.DataObject
) -> None:
    name, elements = walk
    places = [i for i, item in enumerate(elements) if item.tag in (Tag.OBSERVATION, Tag.ANSWER)]
    if not places:
        return
    place = data.draw(st.sampled_from(places))
    assert grammar_for(name).check(elements[:place] + elements[place + 1 :])


@given(walks(), st.data())
@settings(max_examples=100, deadline=None)
def test_an_element_that_is_not_allowed_is_caught_where_it_stands(
    walk: tuple[GrammarName, list[Element]], data: st.DataObject
) -> None:
    name, elements = walk
    place = data.draw(st.integers(0, len(elements)))
    state = grammar_for(name).start()
    for element in elements[:place]:
        state.advance(element.tag, element.text)
    tag = data.draw(st.sampled_from(sorted(set(Tag) - state.allowed())))
    assert state.advance(tag, _text_of(tag))
