"""The fields of manifest/{split}.json and report.json, and the check of both and of a manifest's row groups.

The same models write the two files and read them. Writing dumps the fields that were set (`dump`), so a file that is
read and written again keeps its bytes. Reading is strict ("3" is not a number), and later code takes every field as it
is declared here. Fields that are not declared are kept: another release may have written them. A declared field
without a default must be there; one with a default may be missing in files of earlier releases.
"""

import posixpath
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from packing_udfs import contract
from packing_udfs.knapsack.axes import loosest
from packing_udfs.manifest import Manifest

__all__ = [
    "Drawn",
    "LedgerRow",
    "ManifestInfo",
    "ProcessorName",
    "Report",
    "RunConfig",
    "RunOfSplit",
    "SourceCounts",
    "SplitFigures",
    "SplitOfReport",
    "Sums",
    "faults_of",
    "faults_of_rows",
    "require_manifest",
    "require_report",
    "shortened",
]

Count = Annotated[int, Field(ge=0)]


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    def dump(self) -> dict[str, Any]:
        """Plain JSON values of the fields that were set."""
        return self.model_dump(mode="json", exclude_unset=True)


class SourceCounts(_Document):
    """A source of a run, and what became of its rows."""

    name: str
    repo: str | None = None
    config: str | None = None
    split: str | None = None
    commit: str
    adapter: str | None = None
    unused: list[str] = []
    num_bytes: Count = 0
    num_rows: Count
    num_copies: Count
    num_packed: Count
    num_quarantined: Count
    num_duplicates: Count = 0
    num_not_sampled: Count = 0
    num_taken_down: Count = 0

    @property
    def num_accounted(self) -> int:
        """Rows and copies with an outcome."""
        set_aside = self.num_quarantined + self.num_duplicates + self.num_not_sampled + self.num_taken_down
        return self.num_packed + set_aside


class _WeightedSource(_Document):
    weight: float


class _PackFields(_Document):
    max_vision_cost: int | None
    max_images_per_pack: int | None
    max_images_per_sample: int | None
    over_length: str


class _ShardFields(_Document):
    duplicates: str
    validation_fraction: float
    seed: int


class RunConfig(_Document):
    """Fields of a run's configuration that say what may be in its packs."""

    sources: list[_WeightedSource]
    pack: _PackFields
    shards: _ShardFields
    images: dict[str, Any]


class RunOfSplit(_Document):
    """A run that packed a split or a part of it."""

    run: str
    config: RunConfig
    sources: Annotated[list[SourceCounts], Field(min_length=1)]


class ProcessorName(_Document):
    """The processor that a split is packed for."""

    name: str
    revision: str | None
    fingerprint: str


class Sums(_Document):
    """What the figures are made of (`packing_udfs.metrics`)."""

    num_samples: Count
    num_packs: Count
    num_tokens: Count
    vision_cost: Count
    attention_cost: Count
    bound: Annotated[int, Field(ge=1)]
    naive_tokens: Annotated[int, Field(ge=1)]
    histograms: dict[str, dict[str, Count]] = {}


class SplitFigures(_Document):
    """A split's figures (`jobs.revision.figures`)."""

    totals: dict[str, int]
    sums: Sums
    quality: dict[str, float]


class ManifestInfo(SplitFigures):
    """manifest/{split}.json; `manifest.dump` adds the contract version and the hash of the row groups."""

    run: str
    runs: Annotated[list[RunOfSplit], Field(min_length=1)]
    split: str
    seq_len: Annotated[int, Field(ge=1)]
    vision_unit: str
    num_shards: Annotated[int, Field(ge=1)]
    processor: ProcessorName
    taken_down: list[int] = []

    @classmethod
    def of(cls, found: Manifest) -> "ManifestInfo":
        """The info of a manifest of this shape (`require_manifest`)."""
        return cls.model_validate(found.info)

    @property
    def makes_parts(self) -> bool:
        """Whether a row may have been packed as several samples."""
        return any(run.config.pack.over_length == "split_turns" for run in self.runs)

    @property
    def limits(self) -> dict[str, int | None]:
        """The largest limits of the split's runs, by field of `config.Pack`; None for no limit."""
        return loosest([run.config.pack.model_dump() for run in self.runs]) | {"seq_len": self.seq_len}

    @field_validator("num_shards")
    @classmethod
    def _is_power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError(f"{value} is no power of two")
        return value


class Drawn(_Document):
    """The row group whose packs the page shows."""

    file: str
    row_group: Count


class SplitOfReport(SplitFigures):
    """A split in report.json."""

    drawn: Drawn | None = None

    @classmethod
    def of(cls, info: ManifestInfo, drawn: Drawn | None) -> "SplitOfReport":
        """The split of a manifest."""
        return cls(totals=info.totals, sums=info.sums, quality=info.quality, drawn=drawn)


class LedgerRow(_Document):
    """Rows of a source with one outcome."""

    source: str
    outcome: str
    reason: str
    num_rows: Count
    num_tokens: Count = 0
    num_images: Count = 0


class Report(_Document):
    """report.json: what the last run did."""

    contract: int = 0
    run: str
    config: dict[str, Any]
    sources: list[SourceCounts]
    ledger: list[LedgerRow]
    quarantine: dict[str, Count]
    quarantine_examples: dict[str, list[dict[str, Any]]] = {}
    splits: Annotated[dict[str, SplitOfReport], Field(min_length=1)]
    metrics: dict[str, int] = {}
    versions: dict[str, str] = {}


def faults_of(kind: type[BaseModel], value: object) -> Iterator[tuple[str, str]]:
    """(field, what is wrong) for each fault of a document: ("runs.0.config", "missing")."""
    try:
        kind.model_validate(value)
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            is_missing = fault["type"] == "missing"
            message = "missing" if is_missing else f"{fault['msg']}, it is {shortened(repr(fault['input']))}"
            yield ".".join(map(str, fault["loc"])), message


def require_manifest(found: Manifest, split: str, name: str = "") -> ManifestInfo:
    """The info of a split's manifest. Raises ContractError with the first fault of info or row groups.

    name: the dataset, for the message.
    """
    _require(name, contract.MANIFEST_JSON.format(split=split), faults_of(ManifestInfo, found.info))
    _require(name, contract.MANIFEST_PARQUET.format(split=split), faults_of_rows(found.row_groups, split))
    return ManifestInfo.of(found)


def require_report(report: object, name: str = "") -> Report:
    """A report. Raises ContractError with its first fault."""
    _require(name, contract.REPORT, faults_of(Report, report))
    return Report.model_validate(report)


def _require(name: str, file: str, faults: Iterator[tuple[str, str]]) -> None:
    for field, message in faults:
        where = ": ".join(part for part in (name, file, field) if part)
        raise contract.ContractError(f"{where}: {message}; jobs.validate tells all that is wrong")


def faults_of_rows(rows: pa.Table, split: str) -> Iterator[tuple[str, str]]:
    """(column, what is wrong) for each fault of a manifest's row groups."""
    if not rows.schema.equals(contract.MANIFEST_SCHEMA):
        lacks = [name for name in contract.MANIFEST_SCHEMA.names if name not in rows.column_names]
        yield "", f"its columns are not the contract's{f': it has no {lacks[0]}' if lacks else ''}"
        return
    if not rows.num_rows:
        yield "", "no row group"
    for name in rows.column_names if rows.num_rows else ():
        values = rows[name].combine_chunks()
        is_list = pa.types.is_list(values.type)
        if values.null_count or (is_list and values.flatten().null_count):
            yield name, "nulls; the contract has none"
        elif is_list and not np.array_equal(values.value_lengths(), rows["num_rows"]):
            yield name, "not a value for each pack"
        elif pa.types.is_integer(values.type) and (least := values.to_numpy().min()) < 0:
            yield name, f"{least}, at least 0 is possible"
    folder = contract.DATA_DIR.format(split=split)
    for file in rows["file"].unique().drop_null().to_pylist():
        if not posixpath.normpath(file).startswith(f"{folder}/"):
            yield "file", f"{file!r} is not in {folder}/"


def shortened(text: str) -> str:
    """A value for a message."""
    return text if len(text) < 60 else f"{text[:57]}…"
