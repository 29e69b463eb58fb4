"""Samples of Parquet files with FineVision's columns, as the demo processor would encode them."""

import glob
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from transformers import AutoProcessor

from packing_udfs.encode.encoder import EncodedSample, Encoder
from packing_udfs.encode.images import ImageError, read_size
from tests.bench.finevision import Samples

DEMO = Path("jobs/demo")


def read(pattern: str) -> tuple[Samples, int]:
    """(samples of the Parquet files, how many rows could not be encoded).

    pattern: a glob of files with `images`, `texts` and perhaps `source`; `**` descends.
    """
    encoder = Encoder(AutoProcessor.from_pretrained(str(DEMO / "processor")))
    found, num_bad, sources = [], 0, {}
    for file in sorted(glob.glob(pattern, recursive=True)):
        parquet = pq.ParquetFile(file)
        columns = [name for name in ("images", "texts", "source") if name in parquet.schema_arrow.names]
        for batch in parquet.iter_batches(batch_size=64, columns=columns):
            for row in batch.to_pylist():
                encoded = _encode(encoder, row)
                num_bad += encoded is None
                if encoded is not None:
                    source = sources.setdefault(row.get("source"), len(sources))
                    found.append((len(encoded.input_ids), encoded.vision_cost, len(row["images"] or ()), source))
    columns = np.array(found, dtype=np.int64).reshape(-1, 4).T
    return Samples(lengths=columns[0], vision_costs=columns[1], num_images=columns[2], sources=columns[3]), num_bad


def _encode(encoder: Encoder, row: dict) -> EncodedSample | None:
    if not row["texts"]:
        return None
    images = row["images"] or []
    messages = []
    for turn in row["texts"]:
        pictures = [{"type": "image", "text": None}] * (0 if messages else len(images))
        messages.append({"role": "user", "content": [*pictures, {"type": "text", "text": turn["user"]}]})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": turn["assistant"]}]})
    try:
        sizes = [read_size(image["bytes"]) for image in images]
    except ImageError:
        return None
    (encoded,) = encoder.encode([messages], [sizes])
    return encoded if isinstance(encoded, EncodedSample) else None


def inputs() -> dict[str, str]:
    """Globs by name: `demo`, and `path` if BENCH_DATA names files."""
    return {"demo": f"{DEMO}/source/**/*.parquet"} | (
        {"path": os.environ["BENCH_DATA"]} if "BENCH_DATA" in os.environ else {}
    )
