"""Packs that follow the contract, made from their number alone."""

import numpy as np
import pyarrow as pa
from PIL import Image

from packing_udfs import contract
from tests.unit.nasty_images import save


def made_pack(number: int) -> dict:
    """Pack `number`: two samples of 3 and 2 tokens; the first has `number` % 3 images, of number + 1 by 2 pixels."""
    num_images = number % 3
    edge = number + 1
    picture = Image.fromarray(np.full((edge, 2, 3), number, np.uint8))
    ids = [1000 * number + i for i in range(5)]
    return {
        "input_ids": ids,
        "labels": [-100, ids[1], ids[2], -100, ids[4]],
        "sample_lengths": [3, 2],
        "sample_num_images": [num_images, 0],
        "image_num_tokens": [1] * num_images,
        "image_sizes": [{"height": edge, "width": 2}] * num_images,
        "sample_ids": [-number, number],
        "sample_sources": ["a", "b"],
        "sample_files": ["a.parquet", "b.parquet"],
        "sample_rows": [7, 0],
        "sample_kept": [None, '{"license":"mit"}'],
        "images": [{"bytes": save(picture, "PNG"), "path": f"{number}-{i}.png"} for i in range(num_images)],
        "num_tokens": 5,
        "num_label_tokens": 3,
        "num_images": num_images,
        "vision_cost": 10 * num_images,
    }


def packs_table(first: int, num_packs: int) -> pa.Table:
    """Packs first, first + 1, …"""
    return pa.Table.from_pylist([made_pack(first + i) for i in range(num_packs)], schema=contract.PACK_SCHEMA)
