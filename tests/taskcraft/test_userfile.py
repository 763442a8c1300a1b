"""The user's own tasks: every malformed row is refused by file, row and field, never with a traceback."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.config import AgentConfig, ConfigError, TasksConfig
from afm_core.data import AgentTask, Document, Split, tasks_table
from afm_core.store import write_table
from afm_core.taskcraft import Selection, make_tasks, read_user_tasks
from afm_core.taskcraft.userfile import parse_row

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from([*AgentTask.model_fields, "answer", "odd"])


def _write(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_two_fields_make_a_task(tmp_path: Path) -> None:
    (task,) = read_user_tasks(_write(tmp_path / "mine.jsonl", {"question": "Who?", "answer": "Ada"}))
    assert (task.question, task.answers, task.split) == ("Who?", ("Ada",), Split.TRAIN)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q"}, r"row 2, field answers: missing"),
        ({"answers": ["a"]}, r"row 2, field question: missing"),
        ({"question": "q", "answers": "a"}, r"row 2, field answers: expected a list"),
        ({"question": "q", "answers": [4]}, r"row 2, field answers: every answer must be a text"),
        ({"question": "q", "answers": 4}, r"row 2, field answers: expected a list"),
        ({"question": "q", "answers": [" "]}, r"row 2, field row: answers must not be empty"),
        ({"question": 3, "answers": ["a"]}, r"row 2, field question: expected a text"),
        ({"question": "q", "answr": "a"}, r"row 2, field answr: unknown; did you mean 'answer'\?"),
        ({"question": "q", "answer": "a", "split": "trian"}, r"row 2, field split"),
        ({"question": "q", "answer": "a", "id": "0"}, r"row 2, field row: id '0' is not the hash"),
        ({"question": "q", "answer": "a", "difficulty": {"hops": 0}}, r"row 2, field difficulty.hops"),
        ({"question": "q", "answer": "a", "answers": ["a"]}, r"row 2, field answer: give answer or answers"),
        ({"question": "first", "answer": "1"}, r"row 2, field question: the same task as in row 1"),
        ([1, 2], r"row 2: expected an object"),
        ("{", r"row 2: not valid JSON"),
    ],
)
def test_errors_name_file_row_and_field(tmp_path: Path, row: Any, message: str) -> None:
    path = _write(tmp_path / "mine.jsonl", {"question": "first", "answer": "1"}, row)
    with pytest.raises(ConfigError, match=r"mine\.jsonl, " + message):
        read_user_tasks(path)


@given(JSON_VALUES | st.dictionaries(FIELDS, JSON_VALUES, max_size=6))
def test_any_row_is_a_task_or_a_configuration_error(row: Any) -> None:
    try:
        task, error = parse_row(row, "here"), None
    except ConfigError as caught:
        task, error = None, str(caught)
    assert isinstance(task, AgentTask) or (error is not None and error.startswith("here"))


@given(question=st.text(min_size=1).filter(str.strip), answers=st.lists(st.text().filter(str.strip), min_size=1))
def test_a_valid_row_survives_a_round_trip(question: str, answers: list[str]) -> None:
    task = parse_row({"question": question, "answers": answers}, "here")
    assert parse_row(json.loads(json.dumps(task.model_dump(mode="json"))), "here") == task


@pytest.mark.parametrize("name", ["none.jsonl", "tasks.csv"])
def test_unreadable_files_are_configuration_errors(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        read_user_tasks(tmp_path / name)


def test_empty_and_damaged_files_are_configuration_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tasks in it"):
        read_user_tasks(_write(tmp_path / "empty.jsonl"))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not a table")
    with pytest.raises(ConfigError, match=r"cannot read the tasks of .*bad\.parquet"):
        read_user_tasks(tmp_path / "bad.parquet")


def test_generated_tasks_come_back_from_parquet_and_jsonl(tmp_path: Path, micro_tasks: Selection) -> None:
    write_table(tasks_table(micro_tasks.tasks), tmp_path / "tasks.parquet")
    lines = [task.model_dump(mode="json") for task in micro_tasks.tasks]
    assert read_user_tasks(tmp_path / "tasks.parquet") == micro_tasks.tasks
    assert read_user_tasks(_write(tmp_path / "tasks.jsonl", *lines)) == micro_tasks.tasks


def test_rows_without_split_are_dealt_to_all_four(tmp_path: Path, micro: list[Document]) -> None:
    rows = [{"question": f"Question {number}?", "answer": str(number)} for number in range(40)]
    path = _write(tmp_path / "mine.jsonl", *rows)
    tasks = make_tasks(micro, TasksConfig(file=str(path)), AgentConfig()).tasks
    assert {task.split for task in tasks} == set(Split)
    assert tasks == make_tasks(micro, TasksConfig(file=str(path)), AgentConfig()).tasks


def test_a_file_without_test_tasks_cannot_be_run(tmp_path: Path, micro: list[Document]) -> None:
    path = _write(tmp_path / "mine.jsonl", {"question": "q?", "answer": "1", "split": "train"})
    with pytest.raises(ConfigError, match="no task has the split dev, gate, test"):
        make_tasks(micro, TasksConfig(file=str(path)), AgentConfig())


def test_evidence_of_another_corpus_is_refused(tmp_path: Path, micro: list[Document], micro_tasks: Selection) -> None:
    path = tmp_path / "tasks.parquet"
    write_table(tasks_table(micro_tasks.tasks), path)
    without = [document for document in micro if document.component != micro_tasks.tasks[0].component]
    with pytest.raises(ConfigError, match=r"field evidence: document .* is not in the corpus"):
        make_tasks(without, TasksConfig(file=str(path)), AgentConfig())
