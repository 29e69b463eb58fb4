"""The body of the grouped pandas UDF: one shard of samples in, packs in row groups and what was left out.

Order is made here, because a shuffle brings rows in any order: sort by (sample_id, provenance, copy), drop exact
duplicates, read image sizes, encode, set aside what fits no pack, choose packs by lengths and costs alone, deal them
to aligned row groups. Only then are bytes touched, one row group at a time, so the memory beyond the shard itself is
one row group. Same samples and settings give the same bytes, whatever brought them here.

Selection is apart from assembly: the knapsack sees integers and returns indices (`packing_udfs.knapsack`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa

from packing_udfs import balance, knapsack, metrics
from packing_udfs.config import Video
from packing_udfs.contract import PACK_SCHEMA, QUARANTINE_SCHEMA, SAMPLE_SCHEMA
from packing_udfs.encode import EncodedSample, EncodeError, Encoder
from packing_udfs.families import Size
from packing_udfs.images import ImageError, read_size
from packing_udfs.video import with_frames

ENCODE_BATCH = 512  # samples rendered and tokenised at a time: enough for the tokenizer's threads, small in memory
MAX_ROW_GROUP_BYTES = 1 << 31  # of images: Arrow's offsets into binary values are int32

NOT_SAMPLED = "not_sampled"  # the `reason` of rows that a source's limit or weight leaves out; they are but counted

LEDGER_SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("outcome", pa.string()),  # packed, quarantined, duplicate, not_sampled
        ("reason", pa.string()),  # of a quarantine, else empty
        ("num_rows", pa.int64()),
        ("num_copies", pa.int64()),  # those of num_rows that are copies beyond the first of a row
        ("num_tokens", pa.int64()),  # of the rows that got as far as tokens
        ("num_images", pa.int64()),
        ("num_turns_dropped", pa.int64()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class PackSettings:
    """How a shard is packed. Lengths in tokens, vision cost in the family's unit, None for no limit."""

    seq_len: int
    max_vision_cost: int | None = None
    max_images_per_pack: int | None = None
    max_images_per_sample: int | None = None
    algorithm: str = "balanced"
    num_packs_per_row_group: int = 32
    duplicates: str = "drop"
    seed: int = 0
    videos: Mapping[str, Video] = field(default_factory=dict)
    """For each source with videos, how they become images."""

    @property
    def budgets(self) -> knapsack.Budgets:
        return knapsack.Budgets(
            seq_len=self.seq_len, vision_cost=self.max_vision_cost, num_images=self.max_images_per_pack
        )


@dataclass(frozen=True)
class PackedShard:
    """A packed shard: what to write, what was set aside, and the counts that must add up."""

    num_packs: int
    quarantine: pa.Table  # QUARANTINE_SCHEMA
    ledger: pa.Table  # LEDGER_SCHEMA
    sums: dict[str, int]  # metrics.shard_sums
    _rows: "_Rows"
    _encoded: list[EncodedSample | None]
    _sizes: list[list[Size] | None]
    _groups: list[list[np.ndarray]]

    def row_groups(self) -> Iterator[pa.Table]:
        """Tables of `contract.PACK_SCHEMA`, one a row group, assembled when asked for."""
        for group in self._groups:
            yield pa.Table.from_batches([assemble(self._rows, self._encoded, self._sizes, group)])


class _Rows:
    """A shard's samples in the shard's order: the columns as plain lists, nulls as None.

    Spark hands columns of objects to pandas, whose access by row costs more than the tokenizer; nested lists arrive
    as NumPy arrays of dicts, and null integers turn their column into floats with NaN.
    """

    def __init__(self, samples: pd.DataFrame):
        samples = samples.sort_values(["sample_id", "source", "file", "row", "copy"], kind="stable")
        column = {name: samples[name].astype(object) for name in SAMPLE_SCHEMA.names}
        plain = {name: values.where(values.notna(), None).tolist() for name, values in column.items()}
        self.sample_id: list[int] = plain["sample_id"]
        self.source: list[str] = plain["source"]
        self.file: list[str] = plain["file"]
        self.row: list[int] = plain["row"]
        self.copy = [int(value or 0) for value in plain["copy"]]
        self.reason: list[str | None] = plain["reason"]
        self.num_turns_dropped = [int(value or 0) for value in plain["num_turns_dropped"]]
        self._messages: list = plain["messages"]
        self.images: list[list[dict | None]] = [[] if value is None else list(value) for value in plain["images"]]

    def __len__(self) -> int:
        return len(self.sample_id)

    def messages(self, i: int) -> list[dict] | None:
        """A row's messages as lists and dicts; None when there are none, or a null stands where text should be.

        Made when asked for: so many small objects at a time would keep Python's garbage collector busy.
        """
        plain = []
        for message in () if self._messages[i] is None else self._messages[i]:
            if message is None or message["content"] is None:
                return None
            content = [None if c is None else {"type": c["type"], "text": c["text"]} for c in message["content"]]
            if any(part is None or (part["type"] == "text" and part["text"] is None) for part in content):
                return None
            plain.append({"role": message["role"], "content": content})
        return plain or None


def pack_shard(samples: pd.DataFrame, encoder: Encoder, settings: PackSettings) -> PackedShard:
    """Pack one shard. `samples` has the columns of `contract.SAMPLE_SCHEMA`, in any order of rows."""
    rows = _Rows(samples)
    outcome = _Outcomes(rows)
    if settings.duplicates == "drop":
        outcome.duplicates = _duplicates(rows)
    encoded, sizes = _encode(rows, encoder, outcome, settings)
    _set_aside(encoded, sizes, outcome, settings)
    kept = outcome.kept()
    lengths = np.asarray([len(encoded[i].input_ids) for i in kept], np.int64)
    costs = np.asarray([encoded[i].vision_cost for i in kept], np.int64)
    num_images = np.asarray([len(sizes[i]) for i in kept], np.int64)
    demand = {"vision_costs": costs, "num_images": num_images}
    bins = knapsack.ALGORITHMS[settings.algorithm](lengths, settings.budgets, **demand)
    bins = [np.sort(b) for b in bins]  # a pack reads in the shard's order
    pack_costs = np.asarray([costs[b].sum() for b in bins], np.int64)
    groups = balance.row_groups(pack_costs, settings.num_packs_per_row_group, settings.seed)
    bound = knapsack.bound(lengths, settings.budgets, **demand)
    return PackedShard(
        num_packs=len(bins),
        quarantine=outcome.quarantine(encoded),
        ledger=outcome.ledger(encoded),
        sums=metrics.shard_sums(lengths, costs, len(bins), bound),
        _rows=rows,
        _encoded=encoded,
        _sizes=sizes,
        _groups=[[kept[bins[pack]] for pack in group] for group in groups],
    )


class _Outcomes:
    """What becomes of each row of a shard: a problem, a duplicate, or (neither) a place in a pack."""

    def __init__(self, rows: _Rows):
        self.rows = rows
        self.problems: dict[int, EncodeError] = {}
        self.duplicates: set[int] = set()
        self.not_sampled = {i for i, reason in enumerate(rows.reason) if reason == NOT_SAMPLED}

    def open(self) -> list[int]:
        """Rows that nothing has been said of yet."""
        closed = (self.problems, self.duplicates, self.not_sampled)
        return [i for i in range(len(self.rows)) if not any(i in rows for rows in closed)]

    def kept(self) -> np.ndarray:
        return np.asarray(self.open(), np.int64)

    def quarantine(self, encoded: list[EncodedSample | None]) -> pa.Table:
        rows = self.rows
        found = [
            {
                "reason": problem.reason,
                "detail": problem.detail,
                "source": rows.source[i],
                "file": rows.file[i],
                "row": rows.row[i],
                "copy": rows.copy[i],
                "sample_id": rows.sample_id[i],
                "num_tokens": len(encoded[i].input_ids) if encoded[i] else None,
                "num_images": len(rows.images[i]),
            }
            for i, problem in sorted(self.problems.items())
        ]
        return pa.Table.from_pylist(found, schema=QUARANTINE_SCHEMA)

    def ledger(self, encoded: list[EncodedSample | None]) -> pa.Table:
        rows = self.rows
        counts: dict[tuple[str, str, str], list[int]] = {}
        for i in range(len(rows)):
            outcome, reason = "packed", ""
            if i in self.problems:
                outcome, reason = "quarantined", self.problems[i].reason
            elif i in self.duplicates:
                outcome = "duplicate"
            elif i in self.not_sampled:
                outcome = "not_sampled"
            tokens = len(encoded[i].input_ids) if encoded[i] else 0
            total = counts.setdefault((rows.source[i], outcome, reason), [0] * 5)
            for at, count in enumerate((1, rows.copy[i] > 0, tokens, len(rows.images[i]), rows.num_turns_dropped[i])):
                total[at] += count
        found = [dict(zip(LEDGER_SCHEMA.names, (*key, *counts[key]), strict=True)) for key in sorted(counts)]
        return pa.Table.from_pylist(found, schema=LEDGER_SCHEMA)


def _content(rows: _Rows, i: int):
    """What makes a sample: image bytes (not paths) and messages, in a form that compares by value."""
    return [None if image is None else image["bytes"] for image in rows.images[i]], rows.messages(i)


def _duplicates(rows: _Rows) -> set[int]:
    """Rows whose content equals an earlier row's of the same copy number; equal ids are confirmed by bytes."""
    found: set[int] = set()
    first: dict[tuple[int, int], list[int]] = {}
    for i, key in enumerate(zip(rows.sample_id, rows.copy, strict=True)):
        if rows.reason[i] is not None:
            continue
        earlier = first.setdefault(key, [])
        if any(_content(rows, i) == _content(rows, j) for j in earlier):
            found.add(i)
        else:
            earlier.append(i)
    return found


def _encode(rows: _Rows, encoder: Encoder, outcome: _Outcomes, settings: PackSettings):
    """Encoded samples and image sizes, None where there is a problem or a duplicate."""
    sizes: list[list[Size] | None] = [None] * len(rows)
    encoded: list[EncodedSample | None] = [None] * len(rows)
    todo = outcome.open()
    for start in range(0, len(todo), ENCODE_BATCH):
        messages: dict[int, list[dict]] = {}
        for i in todo[start : start + ENCODE_BATCH]:
            usable = _usable(rows, i, encoder, settings)
            if isinstance(usable, EncodeError):
                outcome.problems[i] = usable
            else:
                messages[i], sizes[i] = usable
        results = encoder.encode(list(messages.values()), [sizes[i] for i in messages])
        for i, result in zip(messages, results, strict=True):
            if isinstance(result, EncodeError):
                outcome.problems[i] = result
            else:
                encoded[i] = result
    return encoded, sizes


def _usable(
    rows: _Rows, i: int, encoder: Encoder, settings: PackSettings
) -> tuple[list[dict], list[Size]] | EncodeError:
    """A row's messages and the sizes of its images, all of which the encoder takes."""
    if rows.reason[i] is not None:
        return EncodeError(rows.reason[i], "")
    messages = rows.messages(i)
    if messages is None:
        return EncodeError("texts_missing", "")
    try:
        if rows.source[i] in settings.videos:
            messages, rows.images[i] = with_frames(messages, rows.images[i], settings.videos[rows.source[i]])
        sizes = [read_size(None if image is None else image["bytes"]) for image in rows.images[i]]
        for size in sizes:
            encoder.expand(size)
    except ImageError as error:
        return EncodeError(error.reason, error.detail)
    except ValueError as error:  # the family's own word on a size or an aspect
        return EncodeError("image_shape", str(error))
    return messages, sizes


def _set_aside(encoded, sizes, outcome: _Outcomes, settings: PackSettings) -> None:
    """Quarantine the samples that fit in no pack."""
    per_sample, per_pack = settings.max_images_per_sample, settings.max_images_per_pack
    max_images = min((m for m in (per_sample, per_pack) if m is not None), default=None)
    for i in outcome.open():
        num_images, sample = len(sizes[i]), encoded[i]
        if max_images is not None and num_images > max_images:
            outcome.problems[i] = EncodeError("too_many_images", f"{num_images} images, at most {max_images}")
        elif len(sample.input_ids) > settings.seq_len:
            detail = f"{len(sample.input_ids)} tokens, at most {settings.seq_len}"
            outcome.problems[i] = EncodeError("too_long", detail)
        elif settings.max_vision_cost is not None and sample.vision_cost > settings.max_vision_cost:
            detail = f"vision cost {sample.vision_cost}, at most {settings.max_vision_cost}"
            outcome.problems[i] = EncodeError("too_much_vision", detail)


def assemble(rows: _Rows, encoded, sizes, packs: list[np.ndarray]) -> pa.RecordBatch:
    """The packs of one row group as a batch of `contract.PACK_SCHEMA`. Each pack is an array of row numbers."""
    order = np.concatenate(packs)
    per_pack = np.cumsum([0, *map(len, packs)])
    lengths = np.asarray([len(encoded[i].input_ids) for i in order], np.int32)
    num_images = np.asarray([len(sizes[i]) for i in order], np.int32)
    costs = np.asarray([encoded[i].vision_cost for i in order], np.int64)
    labels = np.concatenate([encoded[i].labels for i in order])
    ids = np.concatenate([encoded[i].input_ids for i in order])
    token_offsets = _offsets(lengths)[per_pack]
    image_offsets = _offsets(num_images)[per_pack]
    pixels = np.asarray([size for i in order for size in sizes[i]], np.int32).reshape(-1, 2)
    images = [image for i in order for image in rows.images[i]]
    num_bytes = sum(len(image["bytes"]) for image in images)
    if num_bytes >= MAX_ROW_GROUP_BYTES:
        raise ValueError(
            f"shards.num_packs_per_row_group: {len(packs)} packs have {num_bytes} bytes of images, and a row group "
            f"holds less than {MAX_ROW_GROUP_BYTES}; use fewer"
        )

    def lists(offsets: np.ndarray, values: pa.Array) -> pa.ListArray:
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)

    trained = np.concatenate([[0], np.cumsum(labels >= 0)])
    columns = {
        "input_ids": lists(token_offsets, pa.array(ids)),
        "labels": lists(token_offsets, pa.array(labels)),
        "sample_lengths": lists(per_pack, pa.array(lengths)),
        "sample_num_images": lists(per_pack, pa.array(num_images)),
        "image_num_tokens": lists(
            image_offsets, pa.array(np.concatenate([encoded[i].image_num_tokens for i in order]), pa.int32())
        ),
        "image_sizes": lists(
            image_offsets,
            pa.StructArray.from_arrays([pa.array(pixels[:, 0]), pa.array(pixels[:, 1])], ["height", "width"]),
        ),
        "sample_ids": lists(per_pack, pa.array([rows.sample_id[i] for i in order], pa.int64())),
        "sample_sources": lists(per_pack, pa.array([rows.source[i] for i in order], pa.string())),
        "images": lists(
            image_offsets,
            pa.StructArray.from_arrays(
                [
                    pa.array([image["bytes"] for image in images], pa.binary()),
                    pa.array([image["path"] for image in images], pa.string()),
                ],
                ["bytes", "path"],
            ),
        ),
        "num_tokens": pa.array(np.diff(token_offsets), pa.int32()),
        "num_label_tokens": pa.array(np.diff(trained[token_offsets]), pa.int32()),
        "num_images": pa.array(np.diff(image_offsets), pa.int32()),
        "vision_cost": pa.array(np.diff(_offsets(costs)[per_pack]), pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns, schema=PACK_SCHEMA)


def _offsets(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
