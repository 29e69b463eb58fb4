"""The manifest of a split: what was packed, from what, and where each row group lies.

Two files, so that a human reads one and a reader loads the other in one request each: `manifest/{split}.json`
(the *info*: contract version, run, configuration, sources, totals, quality) and `manifest/{split}.parquet` (one row
per row group, `contract.MANIFEST_SCHEMA`). The info names the SHA-256 of the Parquet file, and the fingerprint is
the SHA-256 of the info, so one string pins everything a training run depends on.
"""

import hashlib
import io
import json
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.parquet as pq

from packing_udfs import contract


@dataclass(frozen=True)
class Manifest:
    """A split's info (plain JSON values) and its row groups (a table of `contract.MANIFEST_SCHEMA`)."""

    info: dict
    row_groups: pa.Table
    fingerprint: str

    @cached_property
    def num_packs(self) -> int:
        return sum(self.row_groups["num_rows"].to_pylist())


def dump(info: dict, row_groups: pa.Table) -> tuple[bytes, bytes]:
    """The two files' bytes (JSON, Parquet). The contract version and the Parquet file's hash are filled in."""
    buffer = io.BytesIO()
    table = row_groups.select(contract.MANIFEST_SCHEMA.names).cast(contract.MANIFEST_SCHEMA)
    pq.write_table(table, buffer, compression="zstd")
    parquet = buffer.getvalue()
    info = {**info, "contract": contract.VERSION, "row_groups_sha256": hashlib.sha256(parquet).hexdigest()}
    return json.dumps(info, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n", parquet


def load(info_json: bytes, parquet: bytes, split: str | None = None) -> Manifest:
    """Parse the two files. Raises ContractError when they are not of this version, of each other or of `split`."""
    try:
        info = json.loads(info_json)
    except ValueError as error:
        raise contract.ContractError(f"manifest: its JSON file is no JSON: {error}") from None
    version = info.get("contract") if isinstance(info, dict) else None
    if version != contract.VERSION:
        raise contract.ContractError(
            f"manifest: contract version {version!r} is not {contract.VERSION}, the one this code knows; "
            "install the packing-udfs release that wrote the dataset, or pack it again"
        )
    found = hashlib.sha256(parquet).hexdigest()
    named = info.get("row_groups_sha256")
    if found != named:
        raise contract.ContractError(
            f"manifest: its Parquet file has sha256 {found}, but the JSON file names {named}: "
            "the two are of different commits"
        )
    if split is not None and info.get("split", split) != split:
        raise contract.ContractError(f"manifest: is of the split {info['split']!r}, not of {split!r}")
    if type(info.get("seq_len")) is not int:
        raise contract.ContractError(f"manifest: its seq_len is {info.get('seq_len')!r}, which is no integer")
    try:
        # In this thread: those of Arrow, which would ask for the interpreter, may do so in the middle of a fork.
        table = pq.ParquetFile(pa.BufferReader(parquet), pre_buffer=False).read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise contract.ContractError(f"manifest: its Parquet file cannot be read: {error}") from error
    return Manifest(info, table, hashlib.sha256(info_json).hexdigest())
