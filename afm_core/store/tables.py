"""Canonical parquet: equal tables give equal bytes, so that equal runs give equal digests.

Everything the writer could decide by itself is fixed: format version, row group size, codec and level,
dictionaries, statistics; single-threaded page order; no creation time. Row order is the caller's (see
afm_core.data.tables). Row groups are counted in rows from the table's start, so chunking of the table in
memory does not matter.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_ROWS = 4096


def write_table(table: "pa.Table", path: Path) -> int:
    """Write a table canonically (zstd level 3, row groups of 4,096 rows); returns its row count."""
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table.combine_chunks(),
        path,
        row_group_size=ROW_GROUP_ROWS,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=3,
        use_dictionary=True,
        dictionary_pagesize_limit=2**20,
        data_page_size=2**20,
        write_batch_size=1024,
        write_statistics=True,
        store_schema=True,
    )
    return int(table.num_rows)


def read_table(path: Path) -> "pa.Table":
    """Read a table.

    Raises:
        FileNotFoundError: no such file. ValueError: not a parquet file, or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            return file.read()
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} is not a readable parquet file: {error}") from error
