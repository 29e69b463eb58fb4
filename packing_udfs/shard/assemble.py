"""Samples to packs: the only place that touches image bytes, one row group at a time.

Arrays are concatenated once and offsets computed over them, so a pack costs microseconds; image bytes are copied once,
into Arrow's buffer. Rejected: building each pack as Python lists, a hundred times the work.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from packing_udfs import contract
from packing_udfs.encode.encoder import EncodedSample
from packing_udfs.encode.family import Size
from packing_udfs.knapsack.axes import amounts_of
from packing_udfs.walk import offsets, samples, segment_sums

__all__ = ["MAX_ROW_GROUP_BYTES", "Unit", "assemble", "units_of"]

MAX_ROW_GROUP_BYTES = 1 << 31  # of images: Arrow's offsets into binary values are int32


class Unit(NamedTuple):
    """What is packed as a whole: a sample, or a part of one that was too long."""

    sample_id: int
    source: str
    images: list[dict]  # {"bytes", "path"}, in the order of their placeholders
    sizes: list[Size]
    encoded: EncodedSample
    kept: Mapping[str, Any] = {}
    """Values of further columns of the contract, by name."""

    @property
    def num_bytes(self) -> int:
        """Of its images, its tokens and its labels."""
        return sum(len(image["bytes"]) for image in self.images) + 8 * len(self.encoded.input_ids)


_OF_UNIT: dict[str, Callable[[Unit], Any]] = {
    "images": lambda unit: unit.images,
    "image_sizes": lambda unit: unit.sizes,
    "sample_ids": lambda unit: unit.sample_id,
    "sample_sources": lambda unit: unit.source,
    "sample_lengths": lambda unit: len(unit.encoded.input_ids),
    "sample_num_images": lambda unit: len(unit.sizes),
}


def _value(unit: Unit, name: str) -> Any:
    """What a column holds of a unit; of columns that are not named here, what was kept or the encoder made."""
    if name in _OF_UNIT:
        return _OF_UNIT[name](unit)
    return unit.kept[name] if name in unit.kept else getattr(unit.encoded, name)


def assemble(packs: Sequence[Sequence[Unit]]) -> pa.RecordBatch:
    """The packs of one row group as a batch of `contract.PACK_SCHEMA`. A pack is its units in order, at least one."""
    units = [unit for pack in packs for unit in pack]
    num_bytes = sum(len(image["bytes"]) for unit in units for image in unit.images)
    if num_bytes >= MAX_ROW_GROUP_BYTES:
        raise ValueError(
            f"shards.num_packs_per_row_group: {len(packs)} packs have {num_bytes} bytes of images, and a row group "
            f"holds less than {MAX_ROW_GROUP_BYTES}; use fewer"
        )
    num_samples = np.asarray([len(pack) for pack in packs], np.int64)
    amounts = amounts_of([unit.encoded for unit in units])
    totals = {name: segment_sums(values, num_samples) for name, values in amounts.by_axis.items()}
    labels = np.concatenate([unit.encoded.labels for unit in units])
    totals["num_label_tokens"] = segment_sums(labels >= 0, totals["num_tokens"])
    counts = {"token": totals["num_tokens"], "sample": num_samples, "image": totals["num_images"]}
    starts = {level: pa.array(offsets(of_packs), pa.int32()) for level, of_packs in counts.items()}
    columns = {}
    for name, column in contract.PACK_COLUMNS.items():
        if name in totals:
            columns[name] = pa.array(totals[name], column.type)
            continue
        values = [_value(unit, name) for unit in units]
        if column.level == "pack":
            columns[name] = pa.array(segment_sums(values, num_samples), column.type)
        else:
            columns[name] = pa.ListArray.from_arrays(starts[column.level], _flat(values, column))
    return pa.RecordBatch.from_pydict(columns, schema=contract.PACK_SCHEMA)


def units_of(pack: Mapping[str, Any], vision_cost: Callable[[tuple[Size, ...]], int]) -> list[Unit]:
    """The samples of a stored pack as `walk.packs` gives it: what `assemble` makes the same pack of again.

    vision_cost: of a sample with images of these sizes, because packs store their sum only.
    """
    units = []
    for sample in samples(pack):
        sizes = [Size(**size) for size in sample["image_sizes"]]
        encoded = EncodedSample(
            input_ids=sample["input_ids"],
            labels=sample["labels"],
            image_num_tokens=np.asarray(sample["image_num_tokens"], np.int32),
            vision_cost=vision_cost(tuple(sizes)) if sizes else 0,
        )
        known = {*_OF_UNIT, *EncodedSample._fields}
        kept = {name: value for name, value in sample.items() if name not in known}
        units.append(Unit(sample["sample_ids"], sample["sample_sources"], sample["images"], sizes, encoded, kept))
    return units


def _flat(values: list[Any], column: contract.Column) -> pa.Array:
    """The values of all units, one behind the other: one value of each unit, or several for tokens and images."""
    if column.level == "sample":
        return pa.array(values, column.type)
    if isinstance(values[0], np.ndarray):
        return pa.array(np.concatenate(values), column.type)
    values = [value for of_unit in values for value in of_unit]
    if column.type == contract.IMAGE:
        data, paths = _binary([v["bytes"] for v in values]), pa.array([v["path"] for v in values], pa.string())
        return pa.StructArray.from_arrays([data, paths], ["bytes", "path"])
    if column.type == contract.IMAGE_SIZE:
        pixels = np.asarray(values, np.int32).reshape(-1, 2)
        return pa.StructArray.from_arrays([pa.array(pixels[:, 0]), pa.array(pixels[:, 1])], ["height", "width"])
    return pa.array(values, column.type)


def _binary(values: list[bytes]) -> pa.Array:
    """As `pa.array(values, pa.binary())`, in one copy: its buffer would double and be copied as it grows."""
    ends = pa.py_buffer(offsets([len(value) for value in values]).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(values), [None, ends, pa.py_buffer(b"".join(values))])
