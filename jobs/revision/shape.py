"""The shape of a manifest's and a report's JSON: what has to be there, and of which type, before it is compared.

Only fields that something is compared with are named; others may be there, as of another release. Strict: "3" is no
number. Checks that come after may take every field as it is declared here.
"""

import posixpath
from collections.abc import Iterator
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from packing_udfs import contract
from packing_udfs.manifest import Manifest

Count = Annotated[int, Field(ge=0)]
Histograms = dict[str, dict[str, Count]]


class _Document(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class SourceCounts(_Document):
    """What a run did with a source's rows."""

    name: str
    commit: str
    num_rows: Count
    num_copies: Count
    num_packed: Count
    num_quarantined: Count
    num_duplicates: Count = 0
    num_not_sampled: Count = 0
    num_taken_down: Count = 0


class _WeightedSource(_Document):
    weight: float


class _PackFields(_Document):
    max_vision_cost: int | None
    max_images_per_pack: int | None
    max_images_per_sample: int | None
    over_length: str


class _ShardFields(_Document):
    duplicates: str


class RunConfig(_Document):
    """Fields of a run's configuration that tell what may be in its packs."""

    sources: list[_WeightedSource]
    pack: _PackFields
    shards: _ShardFields


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
    histograms: Histograms = {}


class PartOfReport(_Document):
    """A split's figures."""

    totals: dict[str, int]
    sums: Sums
    quality: dict[str, float]


class Info(PartOfReport):
    """manifest/{split}.json."""

    run: str
    runs: Annotated[list[RunOfSplit], Field(min_length=1)]
    split: str
    seq_len: Annotated[int, Field(ge=1)]
    vision_unit: str
    num_shards: Annotated[int, Field(ge=1)]
    processor: ProcessorName
    taken_down: list[int] = []

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


class SplitOfReport(PartOfReport):
    """A split in report.json."""

    drawn: Drawn | None = None


class LedgerRow(_Document):
    """Rows of a source with one outcome."""

    source: str
    outcome: str
    reason: str
    num_rows: Count


class Report(_Document):
    """report.json."""

    run: str
    config: dict[str, Any]
    sources: list[SourceCounts]
    ledger: list[LedgerRow]
    quarantine: dict[str, Count]
    splits: Annotated[dict[str, SplitOfReport], Field(min_length=1)]


def faults_of(kind: type[BaseModel], value: object) -> Iterator[tuple[str, str]]:
    """(field, what is wrong) of a document that is not of a kind: ("runs.0.config", "missing")."""
    try:
        kind.model_validate(value)
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            is_missing = fault["type"] == "missing"
            message = "missing" if is_missing else f"{fault['msg']}, it is {_short(fault['input'])}"
            yield ".".join(map(str, fault["loc"])), message


def require_shape(name: str, found: Manifest, split: str) -> None:
    """Raises ContractError, with the first fault, for a split's manifest that is not of the shape declared here."""
    _require(f"{name}: {contract.MANIFEST_JSON.format(split=split)}", faults_of(Info, found.info))
    _require(f"{name}: {contract.MANIFEST_PARQUET.format(split=split)}", faults_of_rows(found.row_groups, split))


def require_report(name: str, report: object) -> None:
    """The same for a report."""
    _require(f"{name}: report.json", faults_of(Report, report))


def _require(what: str, faults: Iterator[tuple[str, str]]) -> None:
    for field, message in faults:
        where = f"{what}: {field}" if field else what
        raise contract.ContractError(f"{where}: {message}; jobs.validate tells all that is wrong")


def faults_of_rows(rows: pa.Table, split: str) -> Iterator[tuple[str, str]]:
    """(column, what is wrong) of a manifest's row groups."""
    if not rows.schema.equals(contract.MANIFEST_SCHEMA):
        yield "", "its columns are not the contract's"
        return
    if not rows.num_rows:
        yield "", "no row group"
    for name in rows.column_names:
        values = rows[name]
        is_list = pa.types.is_list(values.type)
        if values.null_count or (is_list and pc.list_flatten(values).null_count):
            yield name, "nulls; the contract has none"
        elif is_list and not pc.all(pc.equal(pc.list_value_length(values), rows["num_rows"])).as_py():
            yield name, "not a value for each pack"
        elif pa.types.is_integer(values.type) and rows.num_rows and pc.min(values).as_py() < 0:
            yield name, f"{pc.min(values).as_py()}, at least 0 is possible"
    folder = contract.DATA_DIR.format(split=split)
    for file in pc.unique(rows["file"]).drop_null().to_pylist():
        if not posixpath.normpath(file).startswith(f"{folder}/"):
            yield "file", f"{file!r} is not in {folder}/"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}…"
