"""One shard as one Parquet file, and the manifest rows by which a reader fetches its row groups.

`write_shard` streams row groups to disk, so memory holds one of them. Then it reads the footer once to record where
each row group lies. Rejected: `pyarrow.parquet.write_table` on the whole shard (twice the memory), and no offsets in
the manifest (a request for the footer of each file, from every rank).
"""

import os
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packing_udfs import contract
from packing_udfs.parquet.ranges import PARQUET_TAIL, chunks_of, span_of

__all__ = ["locations", "row_group_totals", "write_shard"]


def write_shard(path: str, repo_path: str, row_groups: Iterable[pa.Table]) -> pa.Table:
    """Write tables of packs as the row groups of one file and describe them.

    `path`: the local file; `repo_path`: its later place in the repository, which is only recorded. Each table has
    `contract.PACK_SCHEMA` and at least one row. Returns a table of `contract.MANIFEST_SCHEMA`, a row per row group.
    """
    schema = contract.PACK_SCHEMA.with_metadata(contract.parquet_metadata(contract.PACK_SCHEMA))
    rows = []
    with pq.ParquetWriter(path, schema, **contract.writer_options(contract.PACK_SCHEMA)) as writer:
        for table in row_groups:
            assert table.num_rows > 0, "an empty row group: no step could use it"
            writer.write_table(table.cast(schema), row_group_size=table.num_rows)
            rows.append(row_group_totals(table))
    places = locations(pq.read_metadata(path), repo_path, os.path.getsize(path))
    rows = [{**place, **row} for place, row in zip(places, rows, strict=True)]
    return pa.Table.from_pylist(rows, schema=contract.MANIFEST_SCHEMA)


def locations(metadata: pq.FileMetaData, repo_path: str, num_bytes: int) -> list[dict]:
    """Where each row group of a file of `num_bytes` lies, in the columns of `contract.MANIFEST_SCHEMA`."""
    footer_bytes = metadata.serialized_size
    found = []
    for i in range(metadata.num_row_groups):
        chunks = chunks_of(metadata.row_group(i))
        offset, length = span_of(chunks)
        assert length == sum(chunk.total_compressed_size for chunk in chunks), "Arrow leaves no gaps between columns"
        place = {"file": repo_path, "file_bytes": num_bytes, "row_group": i, "offset": offset, "bytes": length}
        place |= {"footer_offset": num_bytes - PARQUET_TAIL - footer_bytes, "footer_bytes": footer_bytes}
        found.append(place | {"num_rows": metadata.row_group(i).num_rows})
    return found


def row_group_totals(packs: pa.Table) -> dict:
    """What the manifest says about the packs of a row group (`contract.PACK_SCHEMA`)."""
    totals = {
        "num_rows": packs.num_rows,
        "num_samples": sum(map(len, packs["sample_ids"].to_pylist())),
        "attention_cost": [int(np.dot(n, n)) for n in map(np.asarray, packs["sample_lengths"].to_pylist())],
    }
    for field in contract.MANIFEST_SCHEMA:
        if field.name in contract.PACK_COLUMNS:
            of_packs = packs[field.name].to_pylist()
            totals[field.name] = of_packs if pa.types.is_list(field.type) else sum(of_packs)
    return totals
