"""A finished shard as the driver is told of it, and how it is kept for an attempt that goes on."""

import io
import json
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from packing_udfs import contract
from packing_udfs.shard.outcomes import LEDGER_SCHEMA

# One row a file, or one without a file when a shard holds no pack.
RESULT = pa.schema(
    [
        ("shard", pa.int32()),
        ("path", pa.string()),  # in the repository
        ("num_bytes", pa.int64()),  # of the file; 0 for none
        ("num_bytes_read", pa.int64()),  # of images that the shard was given
        ("operation", pa.binary()),  # what `upload` returned, pickled; null without a file
        ("row_groups", pa.binary()),  # contract.MANIFEST_SCHEMA; this and the next two as `to_ipc` makes them
        ("quarantine", pa.binary()),  # contract.QUARANTINE_SCHEMA
        ("ledger", pa.binary()),  # outcomes.LEDGER_SCHEMA
        ("sums", pa.string()),  # metrics.shard_sums, as JSON
        ("drawn", pa.string()),  # packs drawn for the report, as JSON; null for none
        ("reuse", pa.string()),  # what became of the last version's packs (`reused`), as JSON
        ("num_bytes_uploaded", pa.int64()),  # that Xet had not; null where that is not known
    ]
)
# Those rows in a file, without what only the process that uploaded can use, and with the file's SHA-256.
_STORED = RESULT.remove(RESULT.get_field_index("operation")).append(pa.field("sha256", pa.string()))
# What Spark is shown of a finished shard, to count by (`jobs.shards.collect`).
COUNTS = ("num_rows", "num_samples", "num_packs", "num_tokens", "num_bytes_read", "num_bytes_written")


def count(row: dict) -> dict[str, int]:
    """`COUNTS` of one row of `RESULT`."""
    sums = {"num_samples": 0, "num_packs": 0, "num_tokens": 0} | json.loads(row["sums"])
    return {
        "num_rows": sum(from_ipc(row["ledger"])["num_rows"].to_pylist()),
        **{name: sums[name] for name in ("num_samples", "num_packs", "num_tokens")},
        "num_bytes_read": row["num_bytes_read"],
        "num_bytes_written": row["num_bytes"],
    }


def to_ipc(table: pa.Table) -> bytes:
    """A small table as Arrow IPC bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def from_ipc(data: bytes) -> pa.Table:
    """The table of `to_ipc`."""
    return pa.ipc.open_stream(data).read_all()


def empty_row(shard: int, path: str) -> dict:
    """The row of a shard that got no sample and so was no group of Spark's: it is finished too."""
    return {
        "shard": shard,
        "path": path,
        "num_bytes": 0,
        "num_bytes_read": 0,
        "operation": None,
        "row_groups": None,
        "quarantine": to_ipc(contract.QUARANTINE_SCHEMA.empty_table()),
        "ledger": to_ipc(LEDGER_SCHEMA.empty_table()),
        "sums": json.dumps({}),
        "drawn": None,
        "reuse": json.dumps({}),
        "num_bytes_uploaded": None,
    }


def dump_rows(rows: Iterable[dict]) -> bytes:
    """Rows of `RESULT` as a Parquet file without `operation`, each with its file's `sha256` (hex, None without one)."""
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=_STORED), buffer, compression="zstd")
    return buffer.getvalue()


def load_rows(data: bytes) -> list[dict]:
    """The rows of `dump_rows`. Raises ValueError for what no `dump_rows` wrote."""
    try:
        table = pq.read_table(io.BytesIO(data))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"no Parquet file: {error}") from None
    if not table.schema.equals(_STORED):
        raise ValueError(f"it has the columns {', '.join(table.column_names)}, not {', '.join(_STORED.names)}")
    return table.to_pylist()
