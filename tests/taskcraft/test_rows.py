"""Files from strangers: one bad row is told with its number and never costs the others."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.config import ConfigError
from afm_core.data import tasks_table
from afm_core.store import write_table
from afm_core.taskcraft import BadRow, GoodRow, NotTasks, Selection, read_rows

GOOD = b'{"question": "Who?", "answer": "Ada"}'


def _read(tmp_path: Path, content: bytes, name: str = "mine.jsonl") -> list[GoodRow | BadRow]:
    (tmp_path / name).write_bytes(content)
    return read_rows(tmp_path / name)


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        (b'{"question": "q"}', "answers", "missing"),
        (b'{"question": "q", "answer": 4}', "answers", "must be a text"),
        (b'{"question": "q", "answer": "a", "split": "trian"}', "split", "Input should be"),
        (b'{"question": "q", "answr": "a"}', "answr", "did you mean 'answer'"),
        (b'{"question": "q", "answer": "a", "difficulty": {"hops": 99999999999}}', "difficulty.hops", "less than"),
        (b'{"question": "\\ud800", "answer": "a"}', "row", "UTF-8"),
        (b'{"question": "q", "answer": "a", "verifier": {"payload": {"x": NaN}}}', "", "NaN is no JSON number"),
        (b'{"question": "q", "answer": "a"', "", "not valid JSON"),
        (b'{"question": "gr\xfc\xdfe", "answer": "a"}', "", "not UTF-8"),
        (b'["question", "answer"]', "", "expected an object"),
        (b"1" * 5000, "", "not valid JSON"),
        (b"[" * 100_000, "", "not valid JSON"),
        (b'{"a":' * 100_000, "", "not valid JSON"),
    ],
)
def test_a_bad_row_is_told_and_the_others_are_kept(tmp_path: Path, row: bytes, field: str, reason: str) -> None:
    first, bad, last = _read(tmp_path, GOOD + b"\n\n" + row + b"\n" + GOOD.replace(b"Who", b"What"))
    assert isinstance(first, GoodRow)
    assert isinstance(last, GoodRow)
    assert isinstance(bad, BadRow)
    assert (bad.row, bad.field, reason in bad.reason) == (3, field, True), bad
    assert json.loads(json.dumps(bad.record(), default=str))["original"] is not None


def test_byte_order_mark_and_carriage_returns_are_no_mistakes(tmp_path: Path) -> None:
    rows = _read(tmp_path, b"\xef\xbb\xbf" + GOOD + b"\r\n" + GOOD + b"\r\n")
    assert [type(row) for row in rows] == [GoodRow, GoodRow]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n \r\n",
        b"\x89PNG\0\0",
        GOOD.decode().encode("utf-16"),
        b"PAR1 no table",
        b"question,answer\nWho?,Ada\n",
        b'[\n {"question": "Who?",\n "answer": "Ada"}\n]',
    ],
)
def test_a_file_without_any_task_is_refused_as_a_whole(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(NotTasks, match=r"mine\.jsonl"):
        _read(tmp_path, content)
    with pytest.raises(ConfigError, match="cannot read"):
        read_rows(tmp_path / "absent.jsonl")


def test_parquet_rows_are_judged_one_by_one_whatever_the_ending(tmp_path: Path, micro_tasks: Selection) -> None:
    write_table(tasks_table(micro_tasks.tasks[:3]), tmp_path / "three")
    assert [row.task for row in read_rows(tmp_path / "three") if isinstance(row, GoodRow)] == micro_tasks.tasks[:3]
    odd = {"question": ["q", None, "r"], "answer": ["a", "b", "c"], "verifier": [{"payload": "{"}, None, None]}
    pq.write_table(pa.table(odd), tmp_path / "odd.parquet")
    first, second, third = read_rows(tmp_path / "odd.parquet")
    assert isinstance(first, BadRow)
    assert isinstance(second, BadRow)
    assert isinstance(third, GoodRow)
    assert (first.field, second.field) == ("verifier.payload", "question")


@given(st.binary(max_size=200))
def test_any_bytes_give_rows_or_a_refusal(tmp_path_factory: Any, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    try:
        rows = read_rows(path)
    except NotTasks:
        return
    assert all(isinstance(row, GoodRow | BadRow) for row in rows)
