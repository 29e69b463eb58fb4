"""One shard as one Parquet file, and the manifest rows that let a reader fetch its row groups without its footer.

`write_shard` streams row groups to disk, so that memory holds one of them; afterwards the footer is read back
once to record where each row group lies. Rejected: `pyarrow.parquet.write_table` on the whole shard (twice the
memory), and leaving offsets to the reader (a footer request per file and rank).
"""

import os
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from packing_udfs import contract

PARQUET_TAIL = 8  # four bytes of footer length, then b"PAR1"


def write_shard(path: str, repo_path: str, row_groups: Iterable[pa.Table]) -> pa.Table:
    """Write tables of packs as the row groups of one file and describe them.

    `path` is the local file, `repo_path` its future place in the repository (recorded, not touched). Each table has
    `contract.PACK_SCHEMA` and at least one row. Returns a table of `contract.MANIFEST_SCHEMA`, one row a row group.
    """
    schema = contract.PACK_SCHEMA.with_metadata(contract.parquet_metadata())
    rows = []
    with pq.ParquetWriter(path, schema, **contract.writer_options()) as writer:
        for table in row_groups:
            assert table.num_rows > 0, "an empty row group cannot be dealt"
            writer.write_table(table.cast(schema), row_group_size=table.num_rows)
            rows.append(row_group_totals(table))
    places = locations(pq.read_metadata(path), repo_path, os.path.getsize(path))
    rows = [{**place, **row} for place, row in zip(places, rows, strict=True)]
    return pa.Table.from_pylist(rows, schema=contract.MANIFEST_SCHEMA)


def locations(metadata: pq.FileMetaData, repo_path: str, num_bytes: int) -> list[dict]:
    """What the manifest says of where each row group of a file of `num_bytes` lies."""
    footer = {
        "file": repo_path,
        "file_bytes": num_bytes,
        "footer_offset": num_bytes - PARQUET_TAIL - metadata.serialized_size,
        "footer_bytes": metadata.serialized_size,
    }
    spans = [row_group_span(metadata.row_group(i)) for i in range(metadata.num_row_groups)]
    return [{**footer, "row_group": i, "offset": at, "bytes": length} for i, (at, length) in enumerate(spans)]


def row_group_totals(packs: pa.Table) -> dict:
    """What the manifest says of one row group's packs (`contract.PACK_SCHEMA`)."""

    def total(name: str) -> int:
        return sum(packs[name].to_pylist())

    return {
        "num_rows": packs.num_rows,
        "num_samples": sum(map(len, packs["sample_ids"].to_pylist())),
        "num_tokens": total("num_tokens"),
        "num_label_tokens": total("num_label_tokens"),
        "num_images": total("num_images"),
        "vision_cost": packs["vision_cost"].to_pylist(),
        "attention_cost": [sum(n * n for n in lengths) for lengths in packs["sample_lengths"].to_pylist()],
    }


def row_group_span(row_group: pq.RowGroupMetaData) -> tuple[int, int]:
    """First byte and length of a row group's column chunks, which Arrow writes one behind the other."""
    columns = [row_group.column(i) for i in range(row_group.num_columns)]
    starts = [c.dictionary_page_offset or c.data_page_offset for c in columns]
    length = sum(c.total_compressed_size for c in columns)
    assert max(s + c.total_compressed_size for s, c in zip(starts, columns, strict=True)) == min(starts) + length
    return min(starts), length
