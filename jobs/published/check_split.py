"""One packed split against itself: its manifest's figures, its files' footers, and every row group of packs."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.output.retries import one_line
from jobs.published.dataset import Packed
from jobs.revision import figures, shape
from jobs.revision.fingerprints import fingerprint_of
from packing_udfs import contract
from packing_udfs.encode.encoder import Encoder
from packing_udfs.encode.processor import fetch_named
from packing_udfs.manifest import Manifest
from packing_udfs.parquet.write import locations, row_group_totals
from packing_udfs.published import pictures
from packing_udfs.published.check import Limits, check_row_group

DAMAGED = (pa.ArrowException, OSError, ValueError)  # what reading a file that is not what it should be raises
_STOPS = ("schema", "row_group")  # findings behind which a file's packs cannot be told


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be, and where."""

    file: str
    message: str
    row_group: int | None = None
    pack: int | None = None
    """Number in the split, as `jobs.inspect --pack` takes it."""
    field: str = ""

    def __str__(self) -> str:
        where = [self.file]
        where += [] if self.row_group is None else [f"row group {self.row_group}"]
        where += [] if self.pack is None else [f"pack {self.pack}"]
        where += [self.field] if self.field else []
        return f"{' '.join(where)}: {self.message}"


@dataclass
class Seen:
    """What a split's packs hold, gathered while they are read."""

    ids: list[np.ndarray] = field(default_factory=list)
    sources: Counter = field(default_factory=Counter)


def check_shape(found: Manifest, split: str) -> list[Finding]:
    """Whether a manifest has the fields and columns that all else is compared with, of their types."""
    json_path, parquet_path = (name.format(split=split) for name in (contract.MANIFEST_JSON, contract.MANIFEST_PARQUET))
    faults = [Finding(json_path, message, field=name) for name, message in shape.faults_of(shape.Info, found.info)]
    rows = shape.faults_of_rows(found.row_groups, split)
    return faults + [Finding(parquet_path, message, field=name) for name, message in rows]


def check_manifest(found: Manifest, split: str) -> list[Finding]:
    """A manifest of sound shape against itself: its sums, its quality, its run's fingerprint."""
    path, info, rows = contract.MANIFEST_JSON.format(split=split), found.info, found.row_groups
    last = info["runs"][-1]
    commits = [source["commit"] for source in last["sources"]]
    run = fingerprint_of(last["config"], commits, info["processor"]["fingerprint"])
    facts = {"split": (info["split"], split), "run": (info["run"], run), "runs.run": (last["run"], run)}
    facts |= _sums_of(info, rows) | _quality_of(info, rows)
    return [
        Finding(path, f"{value}, what it is made of makes {made}", field=name)
        for name, (value, made) in facts.items()
        if value != made
    ]


def _sums_of(info: dict, rows: pa.Table) -> dict[str, tuple]:
    """Sums as they are stated and as the row groups make them."""
    totals, sums = figures.totals(rows), info["sums"]
    facts = {f"totals.{name}": (info["totals"].get(name), value) for name, value in totals.items()}
    same = ("num_samples", "num_packs", "num_tokens", "vision_cost")
    facts |= {f"sums.{name}": (sums.get(name), totals[name]) for name in same}
    attention = sum(map(sum, rows["attention_cost"].to_pylist()))
    facts["sums.attention_cost"] = sums.get("attention_cost"), attention
    for name, counts in sums.get("histograms", {}).items():
        whole = totals["num_samples"] if name.startswith("sample_") else totals["num_packs"]
        facts[f"sums.histograms.{name}"] = sum(counts.values()), whole
    return facts


def _quality_of(info: dict, rows: pa.Table) -> dict[str, tuple]:
    made = figures.quality(info["sums"], rows, info["seq_len"])
    return {f"quality.{name}": (info["quality"].get(name), value) for name, value in made.items()}


def limits_of(packed: Packed, found: Manifest, processor: str | None, decodes: bool) -> Limits:
    """The loosest limits of a split's runs, with what the processor and the packs themselves tell of images.

    Raises ProcessorError when the processor is not the one that the split is packed for.
    """
    packs = [run["config"]["pack"] for run in found.info["runs"]]

    def loosest(name: str) -> int | None:
        values = [pack[name] for pack in packs]
        return None if None in values else max(values)

    return Limits(
        seq_len=found.info["seq_len"],
        max_vision_cost=loosest("max_vision_cost"),
        max_images_per_pack=loosest("max_images_per_pack"),
        max_images_per_sample=loosest("max_images_per_sample"),
        sources=sorted({source["name"] for run in found.info["runs"] for source in run["sources"]}),
        image_token=_image_token(packed, found),
        family=None if processor is None else _family(processor, found),
        decodes=decodes,
    )


def _family(processor: str, found: Manifest):
    return Encoder(fetch_named(found.info["processor"], processor).load()).family


def _image_token(packed: Packed, found: Manifest) -> int | None:
    """The placeholder of images by the first row group that tells it."""
    columns = ["input_ids", "sample_lengths", "sample_num_images", "image_num_tokens"]
    for row in found.row_groups.select(["file", "row_group", "num_images"]).to_pylist():
        if row["num_images"] and row["file"] in packed.paths:
            try:
                token = pictures.image_token_id(packed.row_group(row["file"], row["row_group"], columns))
            except DAMAGED:
                continue  # said where the row group is checked
            if token is not None:
                return token
    return None


def check_data(packed: Packed, found: Manifest, limits: Limits, seen: Seen) -> Iterator[Finding]:
    """Every file of a split that is there: its footer, then row group by row group, which fills `seen`."""
    first, by_file = 0, {}
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
            yield Finding(file, f"{_short(value)}, the manifest says {_short(row[name])}", index, field=name)
    seen.ids.append(packs["sample_ids"].combine_chunks().flatten().drop_null().to_numpy())
    seen.sources.update(packs["sample_sources"].combine_chunks().flatten().to_pylist())


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 60 else f"{text[:57]}…"
