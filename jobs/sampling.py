"""A seeded sample of pinned sources as samples of the contract, on the driver, without Spark.

For looking at data before a job runs: a few row groups of a few Parquet files are read with pyarrow, so no JVM starts
and no source is read as a whole. `adapt_row` gives what `jobs.adapt.finevision` gives, `sample_id` included; a test
on Spark holds the two to each other. Rejected: Spark with a limit (a JVM for two thousand rows, and its `.limit()`
takes whatever comes first).

Which rows: the number asked for is shared out over sources, then over files, by their number of rows; files, row
groups and rows are drawn by hashes of the seed. Rows of one row group lie side by side in the source, so a sample of
a source that is sorted by kind sees some kinds only: NUM_FILES files of each source soften that.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from huggingface_hub import HfFileSystem

from jobs.adapt import RATINGS
from jobs.sources import PinnedSource, SourceFile
from packing_udfs.config import Source
from packing_udfs.contract import SAMPLE_SCHEMA
from packing_udfs.order import permutation

NUM_FILES = 16  # of a source are opened at least, if it has so many
MAX_BYTES = 1 << 30  # of images in a sample: what the driver holds, less than a row group may
SPARK_SEED = 42  # of Spark's xxhash64
_FILES, _ROW_GROUPS, _ROWS = range(3)  # uses of the hash


def read_sample(sources: Sequence[PinnedSource], max_rows: int, seed: int) -> pd.DataFrame:
    """At most `max_rows` rows of the sources as a frame of `contract.SAMPLE_SCHEMA`, in the order of the sources.

    All rows, if there are no more than that. Fewer where images would take more than MAX_BYTES. Raises ValueError on
    max_rows below 1.
    """
    if max_rows < 1:
        raise ValueError(f"max_samples: {max_rows} is refused: must be at least 1")
    shares = share_out(max_rows, [source.num_rows for source in sources])
    total, rows = sum(shares), []
    for i, (pinned, share) in enumerate(zip(sources, shares, strict=True)):
        for at, wanted in _choose_files(pinned.files, share, seed, i):
            path = f"datasets/{pinned.source.repo}@{pinned.commit}/{pinned.files[at].path}"
            read = _read_rows(path, wanted, (seed, i, at))
            read = [(number, adapt_row(row, pinned.source, pinned.files[at].path, number)) for number, row in read]
            rows += _within(MAX_BYTES * wanted // total, [sample for _, sample in sorted(read, key=lambda r: r[0])])
    return pa.Table.from_pylist(rows, schema=SAMPLE_SCHEMA).to_pandas()


def share_out(total: int, sizes: Sequence[int]) -> list[int]:
    """`total` over parts in proportion to their sizes, none above its size; the largest remainders get one more.

    share_out(10, [30, 60, 10]) == [3, 6, 1]; share_out(10, [2, 3]) == [2, 3]
    """
    whole = sum(sizes)
    if total >= whole:
        return list(sizes)
    shares = [total * size // whole for size in sizes]
    remainders = [-(total * size % whole) for size in sizes]
    for i in np.argsort(remainders, kind="stable")[: total - sum(shares)].tolist():
        shares[i] += 1
    return shares


def _choose_files(files: Sequence[SourceFile], share: int, seed: int, source: int) -> list[tuple[int, int]]:
    """(index of a file, rows to take from it): NUM_FILES of them, more where those have fewer rows than `share`."""
    chosen: list[int] = []
    num_rows = 0
    for at in permutation(len(files), seed, _FILES, source).tolist():
        if len(chosen) >= NUM_FILES and num_rows >= share:
            break
        chosen.append(at)
        num_rows += files[at].num_rows
    chosen.sort()
    shares = share_out(share, [files[at].num_rows for at in chosen])
    return [(at, wanted) for at, wanted in zip(chosen, shares, strict=True) if wanted]


def _read_rows(path: str, wanted: int, key: tuple[int, ...]) -> list[tuple[int, dict]]:
    """(row in the file, the row) of `wanted` rows drawn from as few row groups as have that many."""
    with HfFileSystem().open(path) as opened, pq.ParquetFile(opened) as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        starts = np.cumsum([0, *sizes])
        names = [
            name for name in ("images", "texts", *(f"{r}_ratings" for r in RATINGS)) if name in file.schema_arrow.names
        ]
        found: list[tuple[int, dict]] = []
        left = wanted
        for group in permutation(len(sizes), *key, _ROW_GROUPS).tolist():
            drawn = np.sort(permutation(sizes[group], *key, _ROWS, group)[:left])
            rows = file.read_row_group(group, columns=names).take(drawn).to_pylist()
            found += zip((starts[group] + drawn).tolist(), rows, strict=True)
            left -= len(drawn)
            if not left:
                break
    return found


def _within(max_bytes: int, samples: list[dict]) -> list[dict]:
    """The first samples whose images together have at most `max_bytes`."""
    sizes = [sum(len(image["bytes"] or b"") for image in sample["images"] or () if image) for sample in samples]
    return samples[: int(np.searchsorted(np.cumsum(sizes), max_bytes, side="right"))]


def adapt_row(row: dict, source: Source, file: str, number: int) -> dict:
    """A FineVision row as a sample (`contract.SAMPLE_SCHEMA`), as `jobs.adapt.finevision` makes it."""
    turns = row["texts"]
    kept = [turn for i, turn in enumerate(turns or ()) if _passes(row, source, i)]
    reason = None
    if not turns or any(turn is None or turn["user"] is None or turn["assistant"] is None for turn in turns):
        reason = "texts_missing"
    elif not kept:
        reason = "ratings"
    images = row["images"]
    messages = [] if reason is None else None
    for i, turn in enumerate(kept if reason is None else ()):
        placeholders = [{"type": "image", "text": None}] * len(images or ()) if i == 0 else []
        question = {"type": "text", "text": turn["user"]}
        answer = {"type": "text", "text": turn["assistant"]}
        messages += [{"role": "user", "content": [*placeholders, question]}, {"role": "assistant", "content": [answer]}]
    return {
        "sample_id": sample_id(images, messages) if reason is None else _signed(_hash([source.name, file, number])),
        "source": source.name,
        "file": file,
        "row": number,
        "copy": 0,
        "messages": messages,
        "images": images if reason is None else None,
        "reason": reason,
        "num_turns_dropped": len(turns or ()) - len(kept),
    }


def _passes(row: dict, source: Source, i: int) -> bool:
    for name in RATINGS:
        ratings = row.get(f"{name}_ratings") or ()
        rating = ratings[i] if i < len(ratings) else None
        if rating is not None and rating < getattr(source.min_ratings, name):
            return False
    return True


def sample_id(images: list[dict | None] | None, messages: list[dict]) -> int:
    """The sample_id (int64) that `jobs.adapt.sample_id` gives: Spark's xxhash64 of image bytes and messages.

    Spark hashes one value after another, each with the hash so far as its seed, lists and structs item by item, and
    passes over nulls; integers are hashed as their little-endian bytes, counts in four and longs in eight.
    """
    values = [(image["bytes"] if image else None) or b"" for image in images or ()]
    for message in messages:
        values.append(message["role"])
        values += [value for part in message["content"] for value in (part["type"], part["text"]) if value is not None]
    return _signed(_hash(values, xxhash.xxh64_intdigest(len(images or ()).to_bytes(4, "little"), SPARK_SEED)))


def _hash(values: list[str | bytes | int], seed: int = SPARK_SEED) -> int:
    for value in values:
        if isinstance(value, str):
            value = value.encode()
        elif isinstance(value, int):
            value = value.to_bytes(8, "little")
        seed = xxhash.xxh64_intdigest(value, seed)
    return seed


def _signed(value: int) -> int:
    """The int64 of the same bits as a uint64."""
    return value - ((value >> 63) << 64)
