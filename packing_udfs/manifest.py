"""The manifest of a split: what was packed, from what, and where each row group is stored.

It has two files, so that people can read one and a reader loads the other in one request. `manifest/{split}.json` is
the *info*: contract version, run, configuration, sources, totals, quality. `manifest/{split}.parquet` has one row per
row group (`contract.MANIFEST_SCHEMA`). The info names the SHA-256 of the Parquet file, and the fingerprint is the
SHA-256 of the info, so one string pins everything that a training run depends on.

Here the info is plain JSON values: GPU nodes have no pydantic. Its fields and their types, and those of the report, are
in `packing_udfs.published.shape`.
"""

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packing_udfs import contract

__all__ = ["Manifest", "as_json", "as_parquet", "dump", "load", "read"]


@dataclass(frozen=True)
class Manifest:
    """A split's info (plain JSON values) and its row groups (a table of `contract.MANIFEST_SCHEMA`)."""

    info: dict[str, Any]
    row_groups: pa.Table
    fingerprint: str

    @cached_property
    def num_packs(self) -> int:
        return sum(self.row_groups["num_rows"].to_pylist())


def as_json(value: Mapping[str, Any]) -> bytes:
    """A published JSON file: sorted keys and no clock, so that equal runs give equal bytes."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def as_parquet(table: pa.Table) -> bytes:
    """A small published Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def dump(info: Mapping[str, Any], row_groups: pa.Table) -> tuple[bytes, bytes]:
    """The two files' bytes (JSON, Parquet). Fills in the contract version and the Parquet file's hash."""
    parquet = as_parquet(row_groups.select(contract.MANIFEST_SCHEMA.names).cast(contract.MANIFEST_SCHEMA))
    sha256 = hashlib.sha256(parquet).hexdigest()
    return as_json({**info, "contract": contract.VERSION, "row_groups_sha256": sha256}), parquet


def read(read_file: Callable[[str], bytes], split: str) -> Manifest:
    """A split's manifest. `read_file` returns the bytes of a path in the repository. Raises ContractError."""
    info_json, parquet = (contract.MANIFEST_JSON.format(split=split), contract.MANIFEST_PARQUET.format(split=split))
    return load(read_file(info_json), read_file(parquet))


def load(info_json: bytes, parquet: bytes, split: str | None = None) -> Manifest:
    """Parse the two files. Raises ContractError for another version, files of different commits or another split."""
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
        # Not in Arrow's threads: they could ask for the interpreter in the middle of a fork.
        table = pq.ParquetFile(pa.BufferReader(parquet), pre_buffer=False).read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise contract.ContractError(f"manifest: its Parquet file cannot be read: {error}") from error
    return Manifest(info, table, hashlib.sha256(info_json).hexdigest())
