"""The body of the grouped pandas UDF: one shard of samples in, packs in row groups and what was left out.

Order is made here, because a shuffle brings rows in any order: sort by (sample_id, provenance, copy), drop exact
duplicates, read image sizes, encode, set aside what fits no pack, choose packs by lengths and costs alone, deal them
to aligned row groups. Only then are bytes touched, one row group at a time, so the memory beyond the shard itself is
one row group. Same samples and settings give the same bytes, whatever brought them here.

Selection is apart from assembly: the knapsack sees integers and returns indices (`packing_udfs.knapsack`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from packing_udfs import balance, knapsack, metrics
from packing_udfs.contract import PACK_SCHEMA, QUARANTINE_SCHEMA
from packing_udfs.encode import EncodedSample, EncodeError, Encoder
from packing_udfs.images import ImageError, read_size

ENCODE_BATCH = 512  # samples rendered and tokenised at a time: enough for the tokenizer's threads, small in memory

LEDGER_SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("outcome", pa.string()),  # packed, quarantined, duplicate
        ("reason", pa.string()),  # of a quarantine, else empty
        ("num_rows", pa.int64()),
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
    _samples: pd.DataFrame
    _encoded: list[EncodedSample]
    _sizes: list[list[tuple[int, int]]]
    _groups: list[list[np.ndarray]]

    def row_groups(self) -> Iterator[pa.Table]:
        """Tables of `contract.PACK_SCHEMA`, one a row group, assembled when asked for."""
        for group in self._groups:
            yield pa.Table.from_batches([assemble(self._samples, self._encoded, self._sizes, group)])


def pack_shard(samples: pd.DataFrame, encoder: Encoder, settings: PackSettings) -> PackedShard:
    """Pack one shard. `samples` has the columns of `contract.SAMPLE_SCHEMA`, in any order of rows."""
    samples = samples.sort_values(["sample_id", "source", "file", "row", "copy"], kind="stable", ignore_index=True)
    outcome = _Outcomes(samples)
    if settings.duplicates == "drop":
        outcome.duplicates = _duplicates(samples)
    encoded, sizes = _encode(samples, encoder, outcome)
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
        _samples=samples,
        _encoded=encoded,
        _sizes=sizes,
        _groups=[[kept[bins[pack]] for pack in group] for group in groups],
    )


class _Outcomes:
    """What becomes of each row of a shard: a problem, a duplicate, or (neither) a place in a pack."""

    def __init__(self, samples: pd.DataFrame):
        self.samples = samples
        self.problems: dict[int, EncodeError] = {}
        self.duplicates: set[int] = set()

    def open(self) -> list[int]:
        """Rows that nothing has been said of yet."""
        return [i for i in range(len(self.samples)) if i not in self.problems and i not in self.duplicates]

    def kept(self) -> np.ndarray:
        return np.asarray(self.open(), np.int64)

    def _num_images(self, i: int) -> int:
        images = self.samples["images"].iat[i]
        return 0 if images is None else len(images)

    def quarantine(self, encoded: list[EncodedSample | None]) -> pa.Table:
        rows = []
        for i in sorted(self.problems):
            row = self.samples.iloc[i]
            rows.append(
                {name: row[name] for name in ("source", "file", "row", "copy", "sample_id")}
                | {"reason": self.problems[i].reason, "detail": self.problems[i].detail}
                | {"num_tokens": len(encoded[i].input_ids) if encoded[i] else None}
                | {"num_images": self._num_images(i)}
            )
        return pa.Table.from_pylist(rows, schema=QUARANTINE_SCHEMA)

    def ledger(self, encoded: list[EncodedSample | None]) -> pa.Table:
        counts: dict[tuple[str, str, str], list[int]] = {}
        for i in range(len(self.samples)):
            outcome, reason = "packed", ""
            if i in self.problems:
                outcome, reason = "quarantined", self.problems[i].reason
            elif i in self.duplicates:
                outcome = "duplicate"
            key = (self.samples["source"].iat[i], outcome, reason)
            tokens = len(encoded[i].input_ids) if encoded[i] else 0
            row = (1, tokens, self._num_images(i), int(self.samples["num_turns_dropped"].iat[i]))
            counts[key] = [a + b for a, b in zip(counts.get(key, [0] * 4), row, strict=True)]
        rows = [dict(zip(LEDGER_SCHEMA.names, (*key, *counts[key]), strict=True)) for key in sorted(counts)]
        return pa.Table.from_pylist(rows, schema=LEDGER_SCHEMA)


def _content(samples: pd.DataFrame, i: int):
    """What makes a sample: image bytes (not paths) and messages, in a form that compares by value."""
    images = samples["images"].iat[i]
    return (
        [] if images is None else [None if image is None else image["bytes"] for image in images],
        _plain_messages(samples["messages"].iat[i]),
    )


def _plain_messages(messages) -> list[dict]:
    if messages is None:
        return []
    return [
        {"role": m["role"], "content": [{"type": c["type"], "text": c["text"]} for c in m["content"]]} for m in messages
    ]


def _duplicates(samples: pd.DataFrame) -> set[int]:
    """Rows whose content equals an earlier row's of the same copy number; equal ids are confirmed by bytes."""
    found: set[int] = set()
    first: dict[tuple[int, int], list[int]] = {}
    for i, key in enumerate(zip(samples["sample_id"], samples["copy"], strict=True)):
        if samples["reason"].iat[i] is not None:
            continue
        earlier = first.setdefault(key, [])
        if any(_content(samples, i) == _content(samples, j) for j in earlier):
            found.add(i)
        else:
            earlier.append(i)
    return found


def _encode(samples: pd.DataFrame, encoder: Encoder, outcome: _Outcomes):
    """Encoded samples and image sizes, None where there is a problem or a duplicate."""
    sizes: list[list | None] = [None] * len(samples)
    encoded: list[EncodedSample | None] = [None] * len(samples)
    for i in outcome.open():
        reason = samples["reason"].iat[i]
        images = samples["images"].iat[i]
        if reason is not None:
            outcome.problems[i] = EncodeError(reason, "")
            continue
        try:
            sizes[i] = [read_size(None if im is None else im["bytes"]) for im in (() if images is None else images)]
            for size in sizes[i]:
                encoder.expand(size)
        except ImageError as error:
            outcome.problems[i] = EncodeError(error.reason, error.detail)
        except ValueError as error:  # the family's own word on a size or an aspect
            outcome.problems[i] = EncodeError("image_shape", str(error))
    todo = outcome.open()
    for start in range(0, len(todo), ENCODE_BATCH):
        batch = todo[start : start + ENCODE_BATCH]
        messages = [_plain_messages(samples["messages"].iat[i]) for i in batch]
        for i, result in zip(batch, encoder.encode(messages, [sizes[i] for i in batch]), strict=True):
            if isinstance(result, EncodeError):
                outcome.problems[i] = result
            else:
                encoded[i] = result
    return encoded, sizes


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


def assemble(samples: pd.DataFrame, encoded, sizes, packs: list[np.ndarray]) -> pa.RecordBatch:
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
    images = [image for i in order for image in (samples["images"].iat[i] if len(sizes[i]) else ())]

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
        "sample_ids": lists(per_pack, pa.array(samples["sample_id"].to_numpy()[order], pa.int64())),
        "sample_sources": lists(per_pack, pa.array(samples["source"].to_numpy()[order], pa.string())),
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
