"""The result of a finished shard: what the driver receives of it, and how it is stored for a later attempt."""

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packing_udfs import contract
from packing_udfs.shard.outcomes import LEDGER_SCHEMA

__all__ = ["COUNTS", "FIELDS", "ShardFile", "dump_files", "from_ipc", "load_files", "to_ipc"]

# What Spark counts of a finished shard (`jobs.shards.collect`).
COUNTS = ("num_rows", "num_samples", "num_packs", "num_tokens", "num_bytes_read", "num_bytes_written")


def to_ipc(table: pa.Table) -> bytes:
    """A small table as Arrow IPC bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def from_ipc(data: bytes) -> pa.Table:
    """The table of `to_ipc`."""
    return pa.ipc.open_stream(data).read_all()


_NO_QUARANTINE = to_ipc(contract.QUARANTINE_SCHEMA.empty_table())
_NO_LEDGER = to_ipc(LEDGER_SCHEMA.empty_table())


@dataclass(frozen=True, kw_only=True)
class ShardFile:
    """One file of a finished shard; a shard that holds no pack has one ShardFile without a file.

    An oversized shard has several. The first one tells what belongs to the whole shard: its quarantine, its ledger,
    the bytes read and the drawn packs. The defaults are those of a shard that got no sample.
    """

    shard: int
    path: str  # in the repository
    num_bytes: int = 0  # of the file; 0 without one
    num_bytes_read: int = 0  # of images that the shard was given
    operation: Any = None  # what `Output.upload` returned; None without a file, and for a shard that was kept
    row_groups: bytes | None = None  # contract.MANIFEST_SCHEMA as `to_ipc` makes it; None without a file
    quarantine: bytes = _NO_QUARANTINE  # contract.QUARANTINE_SCHEMA, likewise
    ledger: bytes = _NO_LEDGER  # outcomes.LEDGER_SCHEMA, likewise
    sums: str = "{}"  # metrics.shard_sums, as JSON
    drawn: str | None = None  # packs drawn for the report, as JSON
    reuse: str = "{}"  # what became of the last version's packs (`jobs.shards.udf.reused`), as JSON
    num_bytes_uploaded: int | None = None  # that were new to Xet; None when that is not known
    sha256: str | None = None  # of the file (hex), once the driver has stored it

    @property
    def counts(self) -> dict[str, int]:
        """Its `COUNTS`."""
        sums = {"num_samples": 0, "num_packs": 0, "num_tokens": 0} | json.loads(self.sums)
        return {
            "num_rows": sum(from_ipc(self.ledger)["num_rows"].to_pylist()),
            **{name: sums[name] for name in ("num_samples", "num_packs", "num_tokens")},
            "num_bytes_read": self.num_bytes_read,
            "num_bytes_written": self.num_bytes,
        }

    def read_row_groups(self) -> pa.Table:
        """The file's rows of the manifest (contract.MANIFEST_SCHEMA); none without a file."""
        return from_ipc(self.row_groups) if self.row_groups else contract.MANIFEST_SCHEMA.empty_table()


FIELDS = tuple(name for name in ShardFile.__dataclass_fields__ if name != "sha256")  # what a worker fills in

# What is stored: everything but `operation`, which is only for the process that uploaded.
_STORED = pa.schema([
    ("shard", pa.int32()), ("path", pa.string()), ("num_bytes", pa.int64()), ("num_bytes_read", pa.int64()),
    ("row_groups", pa.binary()), ("quarantine", pa.binary()), ("ledger", pa.binary()), ("sums", pa.string()),
    ("drawn", pa.string()), ("reuse", pa.string()), ("num_bytes_uploaded", pa.int64()), ("sha256", pa.string()),
])  # fmt: skip


def dump_files(files: Iterable[ShardFile]) -> bytes:
    """Shard files as a Parquet file, without their `operation`."""
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([vars(file) for file in files], schema=_STORED), buffer, compression="zstd")
    return buffer.getvalue()


def load_files(data: bytes) -> list[ShardFile]:
    """The shard files of `dump_files`. Raises ValueError for bytes that `dump_files` did not write."""
    try:
        table = pq.read_table(io.BytesIO(data))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"no Parquet file: {error}") from None
    if not table.schema.equals(_STORED):
        raise ValueError(f"it has the columns {', '.join(table.column_names)}, not {', '.join(_STORED.names)}")
    return [ShardFile(**row) for row in table.to_pylist()]
