"""JSON lines as users write them: any editor's file is read, a broken row is named."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.config import ConfigError
from afm_core.data import read_jsonl


@given(st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=8) | st.integers(), max_size=3), max_size=5))
def test_whatever_is_written_is_read_with_its_row_number(tmp_path_factory, rows: list[dict[str, object]]) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    assert list(read_jsonl(path)) == list(enumerate(rows, start=1))


def test_a_line_separator_inside_a_text_ends_no_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "x\u2028y\x85z"}\r\n\n{"a": 2}\n', encoding="utf-8")
    assert list(read_jsonl(path)) == [(1, {"a": "x\u2028y\x85z"}), (3, {"a": 2})]


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("[1]", encoding="utf-8-sig")
    assert list(read_jsonl(path)) == [(1, [1])]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}\n{", r"rows\.jsonl, row 2: not valid JSON"),
        (b"[" * 100_000, r"row 1: not valid JSON"),
        (b"\xff\xfe", r"cannot read .*rows\.jsonl"),
        (None, r"cannot read .*rows\.jsonl.*No such file"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        list(read_jsonl(path))
