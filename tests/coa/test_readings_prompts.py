"""Scores, code blocks and prompts."""

import re
from types import SimpleNamespace

import pytest

from afm_core.coa import (
    closed_book_answer,
    closed_book_prompt,
    double_check_score,
    grammar_for,
    parse,
    prompt,
    python_and_stdin,
)
from afm_core.config import GrammarName, PromptStyle
from afm_core.data import Origin, Segment, Status, Tag, Trajectory


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (" The score this time is:4 ", 4),
        ("Score: 3/4", 3),
        ("A score <= 2 would mean a new plan. The score is 4.", 4),
        ("4", 4),
        ("2: the page says otherwise", 2),
        ("3/4", 3),
        ("it fits", None),
        ("2 hops were needed", None),
        ("score: 9", None),
        ("1.5 is the height", None),
        ("", None),
    ],
)
def test_scores_are_read_where_they_are_given(text: str, score: int | None) -> None:
    assert double_check_score(text) == score


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("\n```py\nprint(1)\n```\n", ("print(1)", "")),
        ("```python\nx = '''```'''\n```", ("x = '''```'''", "")),
        ("```py\nprint(input())\n```\n```sh\n5\n```", ("print(input())", "5\n")),
        ("print(1)", None),
        ("```py\n```", None),
        ("```py\n\n```", None),
    ],
)
def test_code_calls_are_one_fenced_block(text: str, parts: tuple[str, str] | None) -> None:
    assert python_and_stdin(text) == parts


@pytest.mark.parametrize("name", list(GrammarName))
def test_the_brief_prompt_is_one_short_line(name: GrammarName) -> None:
    text = prompt("Who?", name, PromptStyle.BRIEF)
    line = text.partition("\n\n")[0]
    assert "\n" not in line
    assert text.endswith("\n\nQuestion: Who?")
    assert len(re.findall(r"[a-zA-Z]+|[^\sa-zA-Z]", line)) <= 40


def test_the_prompt_names_only_bound_tools_with_their_descriptions() -> None:
    text = prompt(
        "Who?", GrammarName.WEB, PromptStyle.FULL, {Tag.WEB_SEARCH: SimpleNamespace(description="local facts")}
    )
    assert "<web_search>: local facts" in text
    assert "crawl_page" not in text
    with pytest.raises(ValueError, match="no tool <code>"):
        prompt("Who?", GrammarName.WEB, PromptStyle.BRIEF, [Tag.CODE])


@pytest.mark.parametrize("name", list(GrammarName))
def test_the_skeleton_of_the_full_prompt_obeys_the_grammar(name: GrammarName) -> None:
    skeleton = prompt("Who?", name, PromptStyle.FULL).partition("Form: ")[2].partition("\n")[0]
    fill = {Tag.CODE: "```py\npass\n```"}
    state = grammar_for(name).start()
    for element in parse(skeleton).elements:
        assert state.advance(element.tag, fill.get(element.tag, "x")) == []
    assert state.finished


def test_examples_are_shown_before_the_question() -> None:
    example = Trajectory(
        id="e", task_id="e", question="Capital?", answer="Oslo", grammar="web", source="test", status=Status.COMPLETED,
        segments=(Segment(origin=Origin.TEACHER, tag=Tag.ANSWER, text="Oslo"),),
    )  # fmt: skip
    text = prompt("Who?", GrammarName.WEB, PromptStyle.BRIEF, examples=[example])
    assert "Question: Capital?\n<answer>Oslo</answer>\n\nQuestion: Who?" in text
    assert closed_book_prompt("Who?", [example]) == closed_book_prompt("Who?", [("Capital?", "Oslo")])


@pytest.mark.parametrize("reply", ["<answer> Oslo </answer>", "Oslo\nbecause", "\n Oslo", "<answer>Oslo"])
def test_closed_book_replies_are_read_with_and_without_tags(reply: str) -> None:
    assert closed_book_answer(reply) == "Oslo"
