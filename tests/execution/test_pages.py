"""Pages for other tools: nothing that models, tools or logs wrote can leave its box."""

import re

from hypothesis import given
from hypothesis import strategies as st

from afm_core.evaluation.report import ElementView, TrajectoryView
from afm_core.execution.pages import failure_page, fenced, model_rows, sample_page

NASTY = st.text(alphabet="`~#<>|\n []()ab", max_size=80)


def outside(page: str) -> str:
    """A page without its fenced blocks, as CommonMark reads it: a block ends at a fence as long as its own."""
    kept, fence = [], ""
    for line in page.splitlines():
        if fence:
            fence = "" if re.fullmatch(f"{fence}`* *", line) else fence
        elif found := re.match("`{3,}", line):
            fence = found.group()
        else:
            kept.append(line)
    assert not fence
    return "\n".join(kept)


@given(NASTY)
def test_no_text_leaves_its_fence(text: str) -> None:
    assert outside(f"before\n{fenced(text)}\nafter") == "before\nafter"


@given(question=NASTY, text=NASTY)
def test_the_sample_shows_a_demonstration_and_a_right_and_a_wrong_episode_of_the_newest_model(question, text) -> None:
    groups = ("Demonstrations", "SFT, right", "SFT, wrong", "RL, right", "RL, wrong")
    element = ElementView("observation", text)
    views = [TrajectoryView(str(i), group, question, (element,) * 30) for i, group in enumerate(groups)]
    headings = [line for line in outside(sample_page(views)).splitlines() if line]
    status = "Status completed, reward unscored."
    assert headings == ["### Demonstrations", status, "### RL, right", status, "### RL, wrong", status]


def test_without_trajectories_there_is_no_sample() -> None:
    assert sample_page([]) == ""


@given(message=NASTY, log=st.lists(NASTY, max_size=4))
def test_a_failure_says_where_why_and_how_to_go_on(message: str, log: list[str]) -> None:
    page = failure_page(message=message, run_id="r1", stage="sft", kind="died", log=log, log_path="/logs/sft.log")
    assert outside(page).startswith("## The run failed in stage `sft`")
    assert "afm runs resume r1" in outside(page)
    assert " ".join(message.split()) in page


def test_models_are_told_with_their_intervals() -> None:
    rows = model_rows({"sft": {"accuracy": 0.5, "interval": (0.4, 0.6), "n": 10, "scored": 9, "protocol": "few_shot"}})
    assert rows == [
        {"model": "sft", "accuracy": "50.0%", "95% interval": "40.0% to 60.0%", "tasks": 10, "unscored": 1,
         "protocol": "few shot"}
    ]  # fmt: skip
