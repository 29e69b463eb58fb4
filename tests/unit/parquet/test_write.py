"""A shard's file and its manifest rows: a reader needs the rows, the footer's bytes and one row group's, no more."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packing_udfs import contract
from packing_udfs.parquet.ranges import PARQUET_TAIL
from packing_udfs.parquet.write import write_shard
from tests.unit.made_packs import packs_table

REPO_PATH = "data/train/00003.parquet"
SIZES = [3, 1, 2]


def groups() -> list[pa.Table]:
    return [packs_table(sum(SIZES[:i]), size) for i, size in enumerate(SIZES)]


@pytest.fixture
def shard(tmp_path):
    """(bytes of the file, its manifest rows)."""
    path = tmp_path / "shard.parquet"
    rows = write_shard(str(path), REPO_PATH, groups())
    return path.read_bytes(), rows


def test_counts_of_each_row_group(shard):
    """Packs 0, 1, 2 have 0, 1, 2 images, pack 3 none, packs 4 and 5 one and two."""
    data, rows = shard
    assert rows.schema == contract.MANIFEST_SCHEMA
    counted = [name for name in rows.column_names if name not in ("footer_offset", "footer_bytes", "offset", "bytes")]
    shared = {"file": REPO_PATH, "file_bytes": len(data)}
    assert rows.select(counted).to_pylist() == [
        shared
        | {"row_group": i, "num_rows": size, "num_samples": 2 * size, "num_tokens": 5 * size}
        | {"num_label_tokens": 3 * size, "num_images": sum(costs) // 10, "vision_cost": costs}
        | {"attention_cost": [3 * 3 + 2 * 2] * size}
        for i, (size, costs) in enumerate(zip(SIZES, [[0, 10, 20], [0], [10, 20]], strict=True))
    ]


def test_row_groups_lie_one_behind_the_other(shard):
    data, rows = shard
    at = 4  # the magic at the start
    for row in rows.to_pylist():
        assert row["offset"] == at
        at += row["bytes"]
    assert at <= rows["footer_offset"][0].as_py()  # page indexes stand between
    assert rows["footer_offset"][0].as_py() + rows["footer_bytes"][0].as_py() + PARQUET_TAIL == len(data)


class Sparse(io.RawIOBase):
    """A file of which some ranges are there; reading any other byte fails."""

    def __init__(self, size: int, ranges: dict[int, bytes]):
        self.size, self.ranges, self.at = size, ranges, 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        end = self.size if size < 0 else min(self.at + size, self.size)
        for start, data in self.ranges.items():
            if start <= self.at and end <= start + len(data):
                found = data[self.at - start : end - start]
                self.at = end
                return found
        raise AssertionError(f"bytes {self.at} to {end} were not fetched")


@pytest.mark.parametrize("index", range(len(SIZES)))
def test_one_row_group_from_two_ranges(shard, index):
    """The footer's range parsed once a file, then one range a row group: no other byte of the file is read."""
    data, rows = shard
    row = rows.to_pylist()[index]
    footer = data[row["footer_offset"] : row["footer_offset"] + row["footer_bytes"]]
    tail = len(footer).to_bytes(4, "little") + b"PAR1"
    metadata = pq.read_metadata(io.BytesIO(b"PAR1" + footer + tail))
    fetched = {row["offset"]: data[row["offset"] : row["offset"] + row["bytes"]]}
    file = pq.ParquetFile(Sparse(row["file_bytes"], fetched), metadata=metadata)
    assert file.read_row_group(row["row_group"]).cast(contract.PACK_SCHEMA) == groups()[index]


def test_the_sparse_file_refuses_what_was_not_fetched(shard):
    """Else the test above could not fail."""
    data, rows = shard
    row = rows.to_pylist()[1]
    metadata = pq.read_metadata(io.BytesIO(data))
    short = {row["offset"]: data[row["offset"] : row["offset"] + row["bytes"] - 1]}
    with pytest.raises(AssertionError, match="were not fetched"):
        pq.ParquetFile(Sparse(len(data), short), metadata=metadata).read_row_group(1)


def test_equal_packs_make_equal_bytes(shard, tmp_path):
    again = tmp_path / "again.parquet"
    rows = write_shard(str(again), REPO_PATH, (table for table in groups()))
    assert (again.read_bytes(), rows) == shard


def test_a_chunked_table_makes_the_same_bytes(shard, tmp_path):
    """How packs came together leaves no trace in the file."""
    chunked = [pa.concat_tables(table.slice(i, 1) for i in range(table.num_rows)) for table in groups()]
    path = tmp_path / "chunked.parquet"
    write_shard(str(path), REPO_PATH, chunked)
    assert path.read_bytes() == shard[0]


def test_an_empty_row_group_is_a_bug(tmp_path):
    with pytest.raises(AssertionError, match="empty row group"):
        write_shard(str(tmp_path / "x.parquet"), REPO_PATH, [packs_table(0, 0)])


def test_a_full_disk_is_an_error():
    """/dev/full takes no byte: ENOSPC, as a disk that others have filled."""
    with pytest.raises(OSError, match="No space left on device"):
        write_shard("/dev/full", "data/train/00000.parquet", groups())
