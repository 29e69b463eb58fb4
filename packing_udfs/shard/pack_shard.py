"""The body of the grouped pandas UDF: one shard of samples in, packs in row groups and what was left out.

Order is made here, because a shuffle brings rows in any order: sort by (sample_id, provenance, copy), drop exact
duplicates, check images and read their sizes, encode, cut or set aside what fits no pack, choose packs by lengths and
costs alone, deal them to aligned row groups. Only then are bytes assembled, one row group at a time, so the memory
beyond the shard itself is one row group. Same samples and settings give the same bytes, whatever brought them here.
A shard that is larger than `max_file_bytes` is cut first, and each part is packed by itself
(`packing_udfs.shard.cut_oversized`).

Selection is apart from assembly: the knapsack sees integers and returns indices (`packing_udfs.knapsack`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
from pydantic import Field

from packing_udfs import knapsack, metrics
from packing_udfs.config import Images, Pack, Video
from packing_udfs.encode.encoder import EncodedSample, EncodeError, Encoder
from packing_udfs.encode.family import Size
from packing_udfs.encode.images import ImageError, prepare
from packing_udfs.encode.over_length import shorten
from packing_udfs.encode.video import with_frames
from packing_udfs.knapsack import Amounts, axes
from packing_udfs.shard import keep_packs
from packing_udfs.shard.assemble import Unit, assemble
from packing_udfs.shard.cut_oversized import runs
from packing_udfs.shard.outcomes import Outcomes
from packing_udfs.shard.row_groups import deal
from packing_udfs.shard.rows import Rows, duplicates

ENCODE_BATCH = 512  # samples rendered and tokenised at a time: enough for the tokenizer's threads, small in memory


class PackSettings(Pack):
    """How a shard is packed: the configuration's `pack`, and what else decides about a shard's bytes."""

    num_packs_per_row_group: int = 32
    max_file_bytes: int | None = None
    """Bytes of images and tokens in a file, before Parquet; a shard that has more becomes several files."""
    duplicates: str = "drop"
    seed: int = 0
    images: Images = Field(default_factory=Images)
    videos: Mapping[str, Video] = {}
    """For each source with videos, how they become images."""
    taken_down: frozenset[int] = frozenset()
    """Ids of samples that are left out wherever they come from."""

    @property
    def budgets(self) -> knapsack.Budgets:
        return axes.budgets_of(self)

    def problem_of(self, sample: EncodedSample) -> EncodeError | None:
        """Why a sample fits in no pack, None when it fits in one."""
        found = axes.over(sample, self)
        return None if found is None else EncodeError(*found)


@dataclass(frozen=True)
class PackedFile:
    """What goes into one file: packs in row groups, and their sums."""

    sums: dict  # metrics.shard_sums and, as "histograms", metrics.histograms
    groups: list[list[list[Unit]]]  # row groups of packs of units
    plan: keep_packs.Plan | None = None  # what became of the last version's packs, where there was one

    def row_groups(self) -> Iterator[pa.Table]:
        """Tables of `contract.PACK_SCHEMA`, one a row group, assembled when asked for."""
        for group in self.groups:
            yield pa.Table.from_batches([assemble(group)])

    def let_go(self, to_come: Iterable["PackedFile"] = ()) -> None:
        """Drop the bytes of its images once they are written, also from the frame that `pack_shard` was given: a frame
        that its caller holds would keep a shard in memory for as long as its upload takes.

        to_come: files whose images stay. Parts of one sample can have the same images.
        """
        needed = {id(image) for file in to_come for image in file._images()}
        for image in self._images():
            if id(image) not in needed:
                image["bytes"] = None

    def _images(self) -> Iterator[dict]:
        return (image for group in self.groups for pack in group for unit in pack for image in unit.images)


@dataclass(frozen=True)
class PackedShard:
    """A packed shard: what to write, what was set aside, and the counts that must add up."""

    quarantine: pa.Table  # contract.QUARANTINE_SCHEMA
    ledger: pa.Table  # outcomes.LEDGER_SCHEMA
    files: list[PackedFile]  # one, unless the shard is oversized

    @property
    def sums(self) -> dict:
        """Those of all files."""
        return metrics.add(file.sums for file in self.files)

    @property
    def num_packs(self) -> int:
        return self.sums["num_packs"]

    @property
    def groups(self) -> list[list[list[Unit]]]:
        """The row groups of all files, one file behind the other."""
        return [group for file in self.files for group in file.groups]

    def row_groups(self) -> Iterator[pa.Table]:
        """The same as tables of `contract.PACK_SCHEMA`."""
        for file in self.files:
            yield from file.row_groups()


def pack_shard(
    samples: pd.DataFrame,
    encoder: Encoder,
    settings: PackSettings,
    previous: Sequence[keep_packs.Previous] = (),
    max_drift: float = 0.003,
) -> PackedShard:
    """Pack one shard. `samples` has the columns of `contract.SAMPLE_SCHEMA`, in any order of rows.

    previous: the shard's files as they were packed before with the same settings, whose packs stay where they can
    (`packing_udfs.shard.keep_packs`), in each at the price of at most the share `max_drift` of packs more.
    """
    rows = Rows(samples)
    outcomes = Outcomes(rows)
    if settings.duplicates == "drop":
        outcomes.duplicates |= duplicates(rows)
    units = _encode(rows, encoder, outcomes, settings)
    parts = [slice(0, len(units))]
    if units and settings.max_file_bytes is not None:
        parts = runs([unit.num_bytes for unit in units], settings.max_file_bytes)
    before = [*previous, *[None] * len(parts)]
    _check_whole(units, [units[part] for part in parts], outcomes)
    return PackedShard(
        quarantine=outcomes.quarantine(),
        ledger=outcomes.ledger(),
        files=[pack_units(units[part], settings, last, max_drift) for part, last in zip(parts, before, strict=False)],
    )


def _check_whole(units: list[Unit], parts: list[list[Unit]], outcomes: Outcomes) -> None:
    """What the ledger counts as packed is what goes to files: a row is one unit, or as many as it was cut into."""
    num_units = len(outcomes.open()) + sum(len(cut.parts) - 1 for cut in outcomes.cuts.values())
    in_files = sum(map(len, parts))
    assert num_units == len(units) == in_files, f"{num_units} samples are counted as packed, {in_files} go to files"


def pack_units(
    units: list[Unit], settings: PackSettings, previous: keep_packs.Previous | None = None, max_drift: float = 0.003
) -> PackedFile:
    """Choose packs of a file by lengths and costs, and deal them to row groups; `units` in the shard's order."""
    amounts = _amounts(units)
    options = {"attention_weight": settings.attention_weight} if settings.algorithm == "balanced" else {}
    algorithm = knapsack.ALGORITHMS[settings.algorithm]

    def pack(members: list[int]) -> list[list[int]]:
        at = np.asarray(members, np.int64)
        bins = algorithm(amounts.take(at), settings.budgets, **options)
        return [at[np.sort(b)].tolist() for b in bins]  # a pack reads in the shard's order

    if previous is None:
        bins = pack(list(range(len(units))))
        costs = amounts.of_packs(axes.VISION, bins)
        plan = keep_packs.Plan(deal(bins, costs, settings.num_packs_per_row_group, settings.seed))
    else:
        plan = keep_packs.replan(
            previous,
            [unit_key(unit, settings) for unit in units],
            amounts,
            settings.budgets,
            pack,
            num_packs_per_group=settings.num_packs_per_row_group,
            seed=settings.seed,
            max_drift=max_drift,
        )
    packs = [members for group in plan.row_groups for members in group]
    placed = sorted(i for members in packs for i in members)
    assert placed == list(range(len(units))), f"{len(units)} samples came to be packed, {len(placed)} are in packs"
    return PackedFile(
        sums=sums_of(units, packs, settings),
        groups=[_units_of(units, group) for group in plan.row_groups],
        plan=plan if previous else None,
    )


def _units_of(units: list[Unit], packs: Sequence[Sequence[int]]) -> list[list[Unit]]:
    return [list(map(units.__getitem__, members)) for members in packs]


def sums_of(units: Sequence[Unit], packs: Sequence[Sequence[int]], settings: PackSettings) -> dict:
    """`PackedFile.sums` of units, in the shard's order, that are packed like this."""
    amounts = _amounts(units)
    bound = knapsack.bound(amounts, settings.budgets)
    found = metrics.histograms(amounts, packs, settings.seq_len)
    return metrics.shard_sums(amounts, len(packs), bound) | {"histograms": found}


def _amounts(units: Sequence[Unit]) -> Amounts:
    return axes.amounts_of([unit.encoded for unit in units])


def unit_key(unit: Unit, settings: PackSettings) -> keep_packs.Key:
    """How a unit is found again. Parts of one sample can be alike in all but their tokens."""
    ids = unit.encoded.input_ids
    tokens = keep_packs.checksum(ids) if settings.over_length == "split_turns" else 0
    return keep_packs.Key(unit.sample_id, unit.source, len(ids), len(unit.sizes), tokens)


def _encode(rows: Rows, encoder: Encoder, outcomes: Outcomes, settings: PackSettings) -> list[Unit]:
    """What can be packed, in the rows' order; what becomes of the other rows goes to `outcomes`."""
    units: list[Unit] = []
    todo = outcomes.open()
    for start in range(0, len(todo), ENCODE_BATCH):
        usable: dict[int, tuple[list[dict], list[Size]]] = {}
        for i in todo[start : start + ENCODE_BATCH]:
            found = _usable(rows, i, settings, outcomes)
            if isinstance(found, EncodeError):
                outcomes.problems[i] = found
            else:
                usable[i] = found
        results = encoder.encode(
            [messages for messages, _ in usable.values()],
            [sizes for _, sizes in usable.values()],
            [rows.tools(i) for i in usable],
        )
        for i, result in zip(usable, results, strict=True):
            if isinstance(result, EncodeError):
                outcomes.problems[i] = result
            else:
                units += _fit(rows, i, *usable[i], result, encoder, outcomes, settings)
    return units


def _usable(
    rows: Rows, i: int, settings: PackSettings, outcomes: Outcomes
) -> tuple[list[dict], list[Size]] | EncodeError:
    """A row's messages and the sizes of its images, which become here what is stored: frames of videos, scaled down."""
    if (reason := rows.reason[i]) is not None:
        reason, _, detail = reason.partition(": ")
        return EncodeError(reason, detail)
    if rows.sample_id[i] in settings.taken_down:
        return EncodeError("taken_down", "")
    try:
        messages, _ = rows.messages(i), rows.tools(i)
    except ValueError as error:
        return EncodeError("field_unsupported", f"tools or calls of tools are text that is no JSON: {error}")
    if messages is None:
        return EncodeError("texts_missing", "")
    try:
        if rows.source[i] in settings.videos:
            messages, rows.images[i] = with_frames(messages, rows.images[i], settings.videos[rows.source[i]])
        data = [None if image is None else image["bytes"] for image in rows.images[i]]
        prepared = [prepare(d, settings.images.verify, settings.images.max_side) for d in data]
    except ImageError as error:
        return EncodeError(error.reason, error.detail)
    for k, (_, smaller) in enumerate(prepared):
        if smaller is not None:
            rows.images[i][k] = {**rows.images[i][k], "bytes": smaller}
    outcomes.num_images_reencoded[i] = sum(smaller is not None for _, smaller in prepared)
    return messages, [size for size, _ in prepared]


def _fit(
    rows: Rows, i: int, messages: list[dict], sizes: list[Size], sample: EncodedSample,
    encoder: Encoder, outcomes: Outcomes, settings: PackSettings,
) -> list[Unit]:  # fmt: skip
    """A row as units that fit in a pack: itself, parts of it by `over_length`, or none and a problem."""
    outcomes.num_tokens[i] = len(sample.input_ids)
    problem = settings.problem_of(sample)
    if problem is None:
        return [Unit(rows.sample_id[i], rows.source[i], rows.images[i], sizes, sample, rows.kept(i))]
    tools = rows.tools(i)

    def encode(conversations: list[list[dict]], of_images: list[list[tuple[int, int]]]) -> list:
        return encoder.encode(conversations, of_images, [tools] * len(conversations))

    short = shorten(settings.over_length, messages, sizes, sample, encode, lambda s: settings.problem_of(s) is None)
    if not short.parts:
        outcomes.problems[i] = problem
        return []
    outcomes.cuts[i] = short
    units = []
    for part in short.parts:
        images = [rows.images[i][k] for k in part.images]
        of_part = [sizes[k] for k in part.images]
        units.append(Unit(rows.sample_id[i], rows.source[i], images, of_part, part.encoded, rows.kept(i)))
    return units
