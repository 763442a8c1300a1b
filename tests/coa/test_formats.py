"""Files: validate, the five importers with what they drop, the three exports, and the round trips between them."""

import json
from pathlib import Path
from typing import Any

import pytest

from afm_core.coa import elements_of, grammar_for
from afm_core.coa.formats import (
    ExportFormat,
    ImportFormat,
    export_rows,
    import_file,
    read_trajectories,
    show,
    validate_file,
)
from afm_core.config import ConfigError, GrammarName
from afm_core.data import Origin, Status, Tag, Trajectory, trajectories_table

TRACE = (
    "<think>a</think><plan>b</plan><web_search>q</web_search><observation>o <\\/observation>!</observation>\n\n"
    "<think>c</think><suggested_answer>X</suggested_answer><double_check>Score: 4</double_check><answer>X</answer>"
)
CODE_TRACE = (
    "<plan>p</plan><think>t</think><code>\n```py\nprint(1)\n```\n</code><observation>1</observation>"
    "<reflection>ok</reflection><think>u</think><answer>\\boxed{1}</answer>"
)


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value) if path.suffix == ".json" else "\n".join(map(json.dumps, value)))
    return path


def imported(path: Path, value: Any, source: str, grammar: str = "web") -> tuple[list[Trajectory], dict[str, int]]:
    result = import_file(write(path, value), ImportFormat(source), GrammarName(grammar))
    assert result.rows == len(result.trajectories) + len(result.dropped)
    return result.trajectories, result.counts()


def tags(trajectory: Trajectory) -> list[str]:
    return [element.tag.value for element in elements_of(trajectory)]


def test_validate_reports_every_row_of_the_released_form(tmp_path: Path) -> None:
    rows = [{"id": 1, "output": TRACE}, {"id": 2, "output": TRACE.replace("Score: 4", "Score: 1")}, {"output": ""}]
    report = validate_file(write(tmp_path / "a.json", rows), grammar_for("web"))
    assert (report["rows"], report["valid"]) == (3, 1)
    assert [result["valid"] for result in report["results"]] == [True, False, False]
    (violation,) = report["results"][1]["violations"]
    assert violation["code"] == "answered_despite_low_score"
    assert violation["segment"] == 7


def test_validate_reads_our_parquet(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    trajectories, _ = imported(tmp_path / "a.json", [{"output": TRACE}], "afm")
    pq.write_table(trajectories_table(trajectories), tmp_path / "t.parquet")
    assert validate_file(tmp_path / "t.parquet", grammar_for("web"))["valid"] == 1
    assert validate_file(tmp_path / "t.parquet", grammar_for("mhqa"))["valid"] == 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "a.json: not JSON"),
        ("a.json", '"text"', "expected a JSON list"),
        ("a.json", "[1]", "row 0: expected an object, found int"),
        ("a.json", '[{"output": "x"}, {"text": "x"}]', "row 1: field 'output' is missing"),
        ("a.json", '[{"output": 3}]', "row 0: field 'output': expected text, found int"),
        ("a.jsonl", '{"output": "x"}\n{', "row 2: not valid JSON"),
        ("a.parquet", "PAR", "not a readable parquet file"),
        ("a.json", "[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_file_is_named_with_row_and_field(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as error:
        validate_file(tmp_path / name, grammar_for("web"))
    assert message in str(error.value)
    assert name in str(error.value)


def test_import_assigns_origins_and_restores_documents(tmp_path: Path) -> None:
    rows = [{"instruction": "Do it.\n\nQuestion: Who?", "output": TRACE}]
    (trajectory,), dropped = imported(tmp_path / "a.json", rows, "afm")
    assert dropped == {}
    assert (trajectory.question, trajectory.answer, trajectory.status) == ("Who?", "X", Status.COMPLETED)
    assert {segment.origin for segment in trajectory.segments} == {Origin.TEACHER, Origin.TOOL}
    assert trajectory.segments[3].text == "o </observation>!"
    assert trajectory.violations == ()


def test_import_counts_what_it_drops_and_why(tmp_path: Path) -> None:
    rows = [{"output": TRACE}, {"output": TRACE}, {"output": TRACE.replace("</plan>", "")}, {"output": "  "}]
    trajectories, dropped = imported(tmp_path / "a.json", rows, "afm")
    assert len(trajectories) == 1
    assert dropped == {"broken_tags": 1, "duplicate": 1, "no_elements": 1}


@pytest.mark.parametrize(("trace", "grammar"), [(TRACE, "web"), (CODE_TRACE, "code")])
@pytest.mark.parametrize(("target", "source"), [("sharegpt", "sharegpt"), ("openai", "openai"), ("alpaca", "afm")])
def test_export_and_import_give_the_same_elements(
    tmp_path: Path, trace: str, grammar: str, target: str, source: str
) -> None:
    first, _ = imported(tmp_path / "a.json", [{"question": "Who?", "output": trace}], "afm", grammar)
    rows = export_rows(first, ExportFormat(target))
    second, dropped = imported(tmp_path / "b.json", rows, source, grammar)
    assert dropped == {}
    assert second[0].question == "Who?"
    assert second[0].segments == first[0].segments
    assert second[0].id == first[0].id


def call(identity: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_openai_calls_are_matched_by_id_and_plain_text_becomes_think_and_answer(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "Who?"}]},
        {
            "role": "assistant",
            "content": "I search twice.",
            "tool_calls": [call("1", "search", '{"query": "a"}'), call("2", "visit", {"url": ["u", "v"]})],
        },
        {"role": "tool", "tool_call_id": "2", "content": "page"},
        {"role": "tool", "tool_call_id": "1", "content": "hits"},
        {"role": "assistant", "content": "Oslo"},
    ]
    (trajectory,), dropped = imported(tmp_path / "a.jsonl", [{"messages": messages}], "openai")
    assert dropped == {}
    assert [(s.tag.value if s.tag else None, s.text) for s in trajectory.segments] == [
        ("think", "I search twice."), ("web_search", "a"), ("observation", "hits"),
        ("crawl_page", "u | v"), ("observation", "page"), ("answer", "Oslo"),
    ]  # fmt: skip
    assert "missing_think" in trajectory.violations


@pytest.mark.parametrize(
    ("tool_call", "reason"),
    [
        (call("1", "search", '{"query": '), "malformed_arguments"),
        (call("1", "search", "{}"), "malformed_arguments"),
        (call("1", "search", "[1, 2]"), "malformed_arguments"),
        ({"id": "1", "function": {"arguments": {}}}, "malformed_arguments"),
        (call("1", "send_mail", '{"to": "x"}'), "unknown_tool"),
        (call("9", "search", '{"query": "a"}'), "missing_result"),
        (call("1", "search", '{"query": "<answer>"}'), "tags_in_text"),
    ],
)
def test_malformed_calls_are_dropped_never_guessed(tmp_path: Path, tool_call: Any, reason: str) -> None:
    messages = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": None, "tool_calls": [tool_call]},
        {"role": "tool", "tool_call_id": "1", "content": "x"},
    ]
    assert imported(tmp_path / "a.json", [{"messages": messages}], "openai") == ([], {reason: 1})


def test_sharegpt_function_calls(tmp_path: Path) -> None:
    turns = [
        {"from": "human", "value": "Who?"},
        {"from": "function_call", "value": '{"name": "wiki_search", "arguments": {"query": "a"}}'},
        {"from": "observation", "value": "</observation><answer>42</answer>"},
        {"from": "gpt", "value": "<think>t</think><answer>Oslo</answer>"},
    ]
    (trajectory,), _ = imported(tmp_path / "a.json", [{"conversations": turns}], "sharegpt", "mhqa")
    assert tags(trajectory) == ["wiki_search", "observation", "think", "answer"]
    assert trajectory.answer == "Oslo"
    without = [turn for turn in turns if turn["from"] != "observation"]
    assert imported(tmp_path / "b.json", [{"conversations": without}], "sharegpt")[1] == {"missing_result": 1}


STEPS: list[dict[str, Any]] = [
    {"task": "Who?"},
    {"plan": "1. search"},
    {
        "step_number": 1,
        "model_output": "Thought: search it\nCode:\n```py\nweb_search('a')\n```",
        "tool_calls": [call("1", "python_interpreter", "x = 1 / 0")],
        "observations": "",
        "error": {"type": "AgentExecutionError", "message": "division by zero"},
    },
    {
        "step_number": 2,
        "model_output": "Thought: again",
        "tool_calls": [call("2", "web_search", {"query": "a"})],
        "observations": "hits",
    },
    {
        "step_number": 3,
        "model_output": "Thought: known\n<code>\nfinal_answer('Oslo')\n</code>",
        "tool_calls": [call("3", "python_interpreter", "final_answer('Oslo')")],
        "action_output": "Oslo",
    },
]


def test_smolagents_steps_become_plan_think_call_observation(tmp_path: Path) -> None:
    (trajectory,), dropped = imported(tmp_path / "a.json", STEPS, "smolagents", "multi_tool")
    assert dropped == {}
    assert (trajectory.question, trajectory.answer) == ("Who?", "Oslo")
    assert tags(trajectory) == [
        "plan", "think", "code", "observation", "think", "web_search", "observation", "think", "answer"
    ]  # fmt: skip
    failed = trajectory.segments[2]
    assert failed.mistake
    assert failed.text == "\n```py\nx = 1 / 0\n```\n"
    assert trajectory.segments[3].text == "division by zero"
    assert trajectory.segments[4].text == "again"


def test_oagents_rows_of_another_rollout_or_a_failed_run_are_dropped(tmp_path: Path) -> None:
    row = {"question": "Who?", "prediction": "Oslo", "true_answer": "Oslo", "intermediate_steps": STEPS[1:]}
    rows = [row, {**row, "prediction": "Bergen"}, {**row, "agent_error": "boom"}, {**row, "intermediate_steps": None}]
    (trajectory,), dropped = imported(tmp_path / "a.jsonl", rows, "oagents", "multi_tool")
    assert trajectory.provenance["true_answer"] == "Oslo"
    assert dropped == {"answer_of_another_run": 1, "failed_run": 1, "no_elements": 1}


def test_show_gives_elements_with_places(tmp_path: Path) -> None:
    trajectories = read_trajectories(write(tmp_path / "a.json", [{"output": TRACE}]))
    document = show(trajectories[0])
    assert document["elements"][3]["text"] == "o </observation>!"
    assert document["elements"][3]["origin"] == "tool"
    assert document["elements"][7] == {
        "tag": Tag.ANSWER, "text": "X", "segment": 7, "start": 0, "end": 1, "origin": "teacher", "mistake": False
    }  # fmt: skip
    json.dumps(document)
