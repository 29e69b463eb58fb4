"""Checks of one packed split: its manifest's figures, its files' footers, and every row group of packs."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.output.retries import one_line
from jobs.published.dataset import Packed
from jobs.revision import figures
from jobs.revision.fingerprints import fingerprint_of
from packing_udfs import contract
from packing_udfs.encode.encoder import Encoder
from packing_udfs.encode.processor import fetch_named
from packing_udfs.manifest import Manifest
from packing_udfs.parquet.write import locations, row_group_totals
from packing_udfs.published import pictures
from packing_udfs.published.check import Limits, check_row_group
from packing_udfs.published.shape import ManifestInfo, faults_of, faults_of_rows, shortened

__all__ = ["DAMAGED", "Finding", "Seen", "check_data", "check_manifest", "check_shape", "limits_of"]

DAMAGED = (pa.ArrowException, OSError, ValueError)  # the errors of reading a damaged file
_STOPS = ("schema", "row_group")  # after these findings a file's packs cannot be checked


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, and where."""

    file: str
    message: str
    row_group: int | None = None
    pack: int | None = None  # its number in the split, as `jobs.inspect --pack` takes it
    field: str = ""

    def __str__(self) -> str:
        row_group = "" if self.row_group is None else f" row group {self.row_group}"
        pack = "" if self.pack is None else f" pack {self.pack}"
        return f"{self.file}{row_group}{pack}{self.field and f' {self.field}'}: {self.message}"


@dataclass
class Seen:
    """The samples of a split's packs, gathered while they are read."""

    ids: list[np.ndarray] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)


def check_shape(found: Manifest, split: str) -> list[Finding]:
    """Whether a manifest has the fields and columns that all else is compared with, of their types."""
    faults = {contract.MANIFEST_JSON: faults_of(ManifestInfo, found.info)}
    faults[contract.MANIFEST_PARQUET] = faults_of_rows(found.row_groups, split)
    return [
        Finding(path.format(split=split), message, field=name)
        for path, of_file in faults.items()
        for name, message in of_file
    ]


def check_manifest(found: Manifest, split: str) -> Iterator[Finding]:
    """A manifest of sound shape against itself: its sums, its quality, its run's fingerprint."""
    info, rows = ManifestInfo.of(found), found.row_groups
    last = info.runs[-1]
    commits = [source.commit for source in last.sources]
    run = fingerprint_of(found.info["runs"][-1]["config"], commits, info.processor.fingerprint)
    facts: dict[str, tuple[Any, Any]] = {
        "split": (info.split, split),
        "run": (info.run, run),
        "runs.run": (last.run, run),
    }
    made = figures.totals(rows)
    facts |= {f"totals.{name}": (info.totals.get(name), value) for name, value in made.items()}
    facts |= {f"sums.{name}": fact for name, fact in _sums(info, made, rows).items()}
    quality = figures.quality(info.sums.dump(), rows, info.seq_len)
    facts |= {f"quality.{name}": (info.quality.get(name), value) for name, value in quality.items()}
    for name, (stated, value) in facts.items():
        if stated != value:
            message = f"{stated}, what it is made of makes {value}"
            yield Finding(contract.MANIFEST_JSON.format(split=split), message, field=name)


def _sums(info: ManifestInfo, totals: Mapping[str, int], rows: pa.Table) -> dict[str, tuple[int, int]]:
    """Sums as they are stated and as the row groups make them."""
    sums = info.sums
    names = ("num_samples", "num_packs", "num_tokens", "vision_cost")
    facts = {name: (getattr(sums, name), totals[name]) for name in names}
    facts["attention_cost"] = (sums.attention_cost, sum(map(sum, rows["attention_cost"].to_pylist())))
    for name, counts in sums.histograms.items():
        whole = totals["num_samples"] if name.startswith("sample_") else totals["num_packs"]
        facts[f"histograms.{name}"] = (sum(counts.values()), whole)
    return facts


def limits_of(packed: Packed, found: Manifest, processor: str | None, decodes: bool) -> Limits:
    """The loosest limits of a split's runs, and what the processor and the packs themselves say of images.

    Raises ProcessorError when the processor is not the one that the split is packed for.
    """
    info = ManifestInfo.of(found)
    family = Encoder(fetch_named(info.processor.dump(), processor).load()).family if processor is not None else None
    return Limits(
        pack=info.limits,
        sources=sorted({source.name for run in info.runs for source in run.sources}),
        image_token=_image_token(packed, found),
        family=family,
        decodes=decodes,
    )


def _image_token(packed: Packed, found: Manifest) -> int | None:
    """The placeholder of images, from the first row group that tells it."""
    columns = ["input_ids", "sample_lengths", "sample_num_images", "image_num_tokens"]
    for row in found.row_groups.select(["file", "row_group", "num_images"]).to_pylist():
        if row["num_images"] and row["file"] in packed.paths:
            try:
                token = pictures.image_token_id(packed.row_group(row["file"], row["row_group"], columns))
            except DAMAGED:
                continue  # reported where the row group is checked
            if token is not None:
                return token
    return None


def check_data(packed: Packed, found: Manifest, limits: Limits, seen: Seen) -> Iterator[Finding]:
    """Every file of a split that exists: its footer, then each row group. Fills `seen`."""
    first, by_file = 0, dict[str, list[dict[str, Any]]]()
    for row in found.row_groups.to_pylist():
        by_file.setdefault(row["file"], []).append(row | {"first_pack": first})
        first += row["num_rows"]
    for file, rows in by_file.items():
        if file not in packed.paths:
            continue
        try:
            # pre_buffer: one request for all columns of a row group.
            options = {"page_checksum_verification": True, "pre_buffer": True}
            with packed.open(file) as source, pq.ParquetFile(source, **options) as parquet:
                faults = list(_footer(file, parquet, rows, packed.paths[file]))
                yield from faults
                if not any(fault.field in _STOPS for fault in faults):
                    for row in rows:
                        yield from _row_group(parquet, row, limits, seen)
        except DAMAGED as error:
            yield Finding(file, f"cannot be read: {one_line(error)}")


def _footer(file: str, parquet: pq.ParquetFile, rows: list[dict], num_bytes: int) -> Iterator[Finding]:
    """A file's footer against contract and manifest."""
    metadata, schema = parquet.metadata, parquet.schema_arrow
    if not schema.equals(contract.PACK_SCHEMA):
        yield Finding(file, "its columns are not those of the contract", field="schema")
        return
    if metadata.num_row_groups != len(rows) or [row["row_group"] for row in rows] != list(range(len(rows))):
        yield Finding(file, f"{metadata.num_row_groups} row groups, the manifest has {len(rows)}", field="row_group")
        return
    for key, value in contract.parquet_metadata().items():
        if (metadata.metadata or {}).get(key) != value:
            message = f"not what version {contract.VERSION} of the contract writes"
            yield Finding(file, message, field=f"metadata {key.decode()}")
    compression = contract.writer_options()["compression"]
    for row, place in zip(rows, locations(metadata, file, num_bytes), strict=True):
        group = metadata.row_group(row["row_group"])
        for name in ("num_rows", "offset", "bytes", "footer_offset", "footer_bytes"):
            value = place[name]
            if row[name] != value:
                yield Finding(file, f"{value}, the manifest says {row[name]}", row["row_group"], field=name)
        for i in range(group.num_columns):
            column = group.column(i)
            wanted = compression[column.path_in_schema].upper().replace("NONE", "UNCOMPRESSED")
            if column.compression != wanted:
                message = f"{column.compression}, the contract has {wanted}"
                yield Finding(file, message, row["row_group"], field=f"compression of {column.path_in_schema}")


def _row_group(parquet: pq.ParquetFile, row: dict, limits: Limits, seen: Seen) -> Iterator[Finding]:
    """One row group's packs against the contract, and their totals against the manifest."""
    file, index = row["file"], row["row_group"]
    try:
        packs = parquet.read_row_group(index, use_threads=False).replace_schema_metadata(None)
        packs.validate(full=True)
    except DAMAGED as error:
        yield Finding(file, f"its bytes are damaged: {one_line(error)}", index)
        return
    for fault in check_row_group(packs, limits):
        pack = None if fault.row is None else row["first_pack"] + fault.row
        yield Finding(file, fault.message, index, pack, fault.field)
    for name, value in row_group_totals(packs).items():
        if row[name] != value:
            yield Finding(
                file, f"{shortened(str(value))}, the manifest says {shortened(str(row[name]))}", index, field=name
            )
    seen.ids.append(packs["sample_ids"].combine_chunks().flatten().drop_null().to_numpy())
    seen.sources.update(packs["sample_sources"].combine_chunks().flatten().to_pylist())
