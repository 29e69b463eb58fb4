"""The last version of a split as the start of its next one: whether it can be, and what a worker needs of it.

Packs stay where they are (`packing_udfs.shard.keep_packs`) only in a split that was packed as it is packed now: with
the same contract, processor, budgets and settings, into as many shards by the same seed. So each worker finds its
shard's last version in a file of the same name, and reads there which samples the packs have. A wrong last version does
no harm: places are reused and content never is, so the worker packs exactly the samples of today.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from jobs.output.interface import Head
from jobs.output.open import Output
from jobs.shards.plan import ShardPlan, splits_of
from packing_udfs import contract
from packing_udfs.config import Config
from packing_udfs.contract import REPORT
from packing_udfs.encode.processor import ProcessorFiles
from packing_udfs.published.shape import ManifestInfo, faults_of
from packing_udfs.shard.keep_packs import Previous
from packing_udfs.shard.last_version import read_previous
from packing_udfs.storage.byte_source import Source, Stop

__all__ = ["LastVersion", "find_last_version"]

NEEDED = ("file", "file_bytes", "footer_offset", "footer_bytes", "row_group", "vision_cost")
FIRST_CHUNK = 128 << 10  # bytes; no chunk of Xet's is longer


@dataclass(frozen=True)
class LastVersion:
    """The row groups of the published splits, and where their files are."""

    output: Output
    source: Source
    row_groups: pa.Table  # NEEDED columns of contract.MANIFEST_SCHEMA
    max_drift: float
    with_tokens: bool  # whether tokens are part of a sample's identity

    def file(self, path: str) -> Previous | None:
        """The packs of a published file, None when there is none.

        Raises AbsentError or ContractError for a file that is not as its manifest says, FetchError for one that cannot
        be reached.
        """
        rows = self._rows(path)
        return read_previous(self.source, rows, with_tokens=self.with_tokens) if rows else None

    def remind(self, path: str, file: Path) -> None:
        """Fill Xet's cache on this machine with the chunks of a file's last version, before a new one is uploaded.

        The client asks the Hub about a new file's first chunk and one in a thousand others. The answer lists what was
        uploaded with that chunk; what no answer lists is sent again. A cluster's workers start with an empty cache, so
        when a file begins otherwise than its last version, that one's beginning is offered first: one small request.
        """
        rows = self._rows(path)
        if not rows:
            return
        with open(file, "rb") as opened:
            now = opened.read(FIRST_CHUNK)
        before = bytes(self.source.read(path, 0, min(FIRST_CHUNK, rows[0]["file_bytes"]), Stop()))
        if before != now:
            self.output.remind(path, before)

    def _rows(self, path: str) -> list[dict]:
        return self.row_groups.filter(pc.call_function("equal", [self.row_groups["file"], path])).to_pylist()


def find_last_version(
    config: Config, plan: ShardPlan, head: Head, output: Output, processor: ProcessorFiles
) -> tuple[LastVersion | None, dict[str, str]]:
    """What a rewrite may reuse, and why not, for each split that it may not reuse.

    A damaged last version is a reason too, and no error: everything in the new one comes from the sources.
    """
    if config.output.mode == "append" or head.commit is None:
        return None, {}
    why: dict[str, str] = {}
    tables, source = [], None
    for split in splits_of(config):
        info = dict(head.manifests).get(split)
        if info is None:
            continue
        num_shards = plan.num_train if split == config.output.split else plan.num_validation
        reason = _why_not(info, config, num_shards, processor)
        if not reason:
            try:
                row_groups = _row_groups(output, head, head.commit, split)
                # A file that is gone, or that an unfinished run replaced, has no last version.
                there = pc.SetLookupOptions(value_set=pa.array(head.paths, pa.string()))
                tables.append(row_groups.filter(pc.call_function("is_in", [row_groups["file"]], there)))
                source = source or output.source(head.commit)
            except (contract.ContractError, FileNotFoundError) as error:
                reason = str(error)
        if reason:
            why[split] = reason
    if source is None:
        return None, why
    with_tokens = config.pack.over_length == "split_turns"
    return LastVersion(output, source, pa.concat_tables(tables), config.output.max_drift, with_tokens), why


def _row_groups(output: Output, head: Head, commit: str, split: str) -> pa.Table:
    """The needed columns of a split's row groups. Raises ContractError or FileNotFoundError when they are not there."""
    path = contract.MANIFEST_PARQUET.format(split=split)
    for needed in (path, REPORT):  # a folder finds by the report whether it is at this commit
        if needed not in head.paths:
            raise contract.ContractError(f"{needed} is not there")
    table = output.read_manifest(commit, split).row_groups
    for name in NEEDED:
        if name not in table.column_names:
            raise contract.ContractError(f"{path} has no column {name}")
    try:
        table = table.select(NEEDED).cast(pa.schema([contract.MANIFEST_SCHEMA.field(name) for name in NEEDED]))
    except pa.ArrowException as error:
        raise contract.ContractError(f"{path} has columns of other types: {error}") from error
    costs = pc.call_function("list_flatten", [table["vision_cost"]])
    for name, values in zip([*NEEDED, "vision_cost"], [*table.columns, costs], strict=True):
        if values.null_count:
            raise contract.ContractError(f"{path} has nulls in {name}")
    return table


def _why_not(info: Mapping, config: Config, num_shards: int, processor: ProcessorFiles) -> str:
    """Why a split of this manifest's info is packed afresh; "" when its packs can stay."""
    if config.output.reuse == "off":
        return "output.reuse is off"
    if info["contract"] != contract.VERSION:
        return f"it is of contract version {info['contract']}"
    for field, message in faults_of(ManifestInfo, info):
        return f"{contract.MANIFEST_JSON.format(split=info.get('split'))}: {field}: {message}"
    found = ManifestInfo.model_validate(info)
    if found.processor.fingerprint != processor.fingerprint:
        return "the processor is another"
    if len(found.runs) > 1:
        return "files were appended to it"
    if found.num_shards != num_shards:
        return f"it had {found.num_shards} shards, not {num_shards}"
    before, now = found.runs[-1].config.dump(), config.model_dump(mode="json")
    fields = [("pack", name) for name in now["pack"]] + [("images", name) for name in now["images"]]
    fields += [("shards", "num_packs_per_row_group"), ("shards", "seed")]
    for section, name in fields:
        old, new = before[section].get(name), now[section][name]
        if old != new:
            return f"{section}.{name} was {old}, not {new}"
    return ""
