"""Samples to packs: the only place that touches image bytes, one row group at a time.

Arrays are concatenated once and offsets computed over them, so a pack costs microseconds; image bytes are copied once,
into Arrow's buffer. Rejected: building each pack as Python lists, a hundred times the work.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from packing_udfs.contract import PACK_SCHEMA
from packing_udfs.encode.encoder import EncodedSample
from packing_udfs.encode.family import Size

MAX_ROW_GROUP_BYTES = 1 << 31  # of images: Arrow's offsets into binary values are int32


class Unit(NamedTuple):
    """What is packed as a whole: a sample, or a part of one that was too long."""

    sample_id: int
    source: str
    images: list[dict]  # {"bytes", "path"}, in the order of their placeholders
    sizes: list[Size]
    encoded: EncodedSample

    @property
    def num_bytes(self) -> int:
        """Of its images, its tokens and its labels."""
        return sum(len(image["bytes"]) for image in self.images) + 8 * len(self.encoded.input_ids)


def assemble(packs: Sequence[Sequence[Unit]]) -> pa.RecordBatch:
    """The packs of one row group as a batch of `contract.PACK_SCHEMA`. A pack is its units in order, at least one."""
    units = [unit for pack in packs for unit in pack]
    encoded = [unit.encoded for unit in units]
    per_pack = np.cumsum([0, *map(len, packs)])
    lengths = np.asarray([len(sample.input_ids) for sample in encoded], np.int32)
    num_images = np.asarray([len(unit.sizes) for unit in units], np.int32)
    costs = np.asarray([sample.vision_cost for sample in encoded], np.int64)
    labels = np.concatenate([sample.labels for sample in encoded])
    ids = np.concatenate([sample.input_ids for sample in encoded])
    token_offsets = _offsets(lengths)[per_pack]
    image_offsets = _offsets(num_images)[per_pack]
    pixels = np.asarray([size for unit in units for size in unit.sizes], np.int32).reshape(-1, 2)
    images = [image for unit in units for image in unit.images]
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
            image_offsets, pa.array(np.concatenate([sample.image_num_tokens for sample in encoded]), pa.int32())
        ),
        "image_sizes": lists(
            image_offsets,
            pa.StructArray.from_arrays([pa.array(pixels[:, 0]), pa.array(pixels[:, 1])], ["height", "width"]),
        ),
        "sample_ids": lists(per_pack, pa.array([unit.sample_id for unit in units], pa.int64())),
        "sample_sources": lists(per_pack, pa.array([unit.source for unit in units], pa.string())),
        "images": lists(
            image_offsets,
            pa.StructArray.from_arrays(
                [
                    _binary([image["bytes"] for image in images]),
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


def _binary(values: list[bytes]) -> pa.Array:
    """As `pa.array(values, pa.binary())`, in one copy: its buffer would double and be copied as it grows."""
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    )


def _offsets(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
