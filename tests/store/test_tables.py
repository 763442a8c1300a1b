"""Equal tables give equal bytes."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afm_core.store import hash_file, read_table, write_table

ROWS = st.lists(
    st.fixed_dictionaries(
        {"id": st.text(max_size=5), "score": st.none() | st.floats(allow_nan=False), "ids": st.lists(st.integers(0, 9))}
    ),
    max_size=20,
)
SCHEMA = pa.schema([("id", pa.string()), ("score", pa.float64()), ("ids", pa.list_(pa.int32()))])


@settings(max_examples=20)
@given(ROWS, st.integers(0, 20))
def test_bytes_depend_on_the_rows_not_on_their_chunks(tmp_path_factory, rows, cut):
    directory = tmp_path_factory.mktemp("tables")
    whole = pa.Table.from_pylist(rows, schema=SCHEMA)
    cut = min(cut, len(rows))
    parts = pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])
    assert write_table(whole, directory / "a") == len(rows)
    write_table(parts, directory / "b")
    assert hash_file(directory / "a") == hash_file(directory / "b")
    assert read_table(directory / "a").equals(whole)


def test_many_row_groups_are_canonical_too(tmp_path: Path):
    table = pa.table({"n": list(range(10_000)), "t": [str(one % 7) for one in range(10_000)]})
    write_table(table, tmp_path / "a")
    write_table(pa.concat_tables([table.slice(0, 3), table.slice(3)]), tmp_path / "deep" / "b")
    assert hash_file(tmp_path / "a") == hash_file(tmp_path / "deep" / "b")


def test_damaged_table_is_a_value_error(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"PAR1 not really")
    with pytest.raises(ValueError, match="not a readable parquet"):
        read_table(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "absent")
