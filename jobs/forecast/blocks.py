"""Blocks of neighbouring rows, drawn by a seed over a source's files, and what the job would make of them.

For forecasts without Spark (`jobs.forecast.forecast`). The job's own reader, adapters and `pack_shard` read a block,
turn its rows into samples and pack them. So tokens, vision cost, images, bytes and quarantine are those of the job.
Only one block is in memory at a time.

Any block of Parquet files and of folders of images can be read. Of other files only the first rows are read, from up
to NUM_FILES files.
"""

import hashlib
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets.exceptions import DatasetsError

from jobs.adapters import PlainSample, plain_samples
from jobs.adapters.provenance import FILE, ROW
from jobs.forecast.drawn_rows import DrawnRow, draw_rows
from jobs.output.retries import HUB_ERRORS, one_line, retrying
from jobs.shards.ledger import Ledger
from jobs.sources.pin import open_reader
from jobs.sources.pinned import PinnedSource, SourceError
from jobs.sources.reading import RowReader, Slice
from packing_udfs.contract import SAMPLE_SCHEMA
from packing_udfs.encode.encoder import Encoder
from packing_udfs.hashing import permutation
from packing_udfs.knapsack.axes import Amounts, amounts_of
from packing_udfs.parquet import write
from packing_udfs.shard.pack_shard import PackedShard, PackSettings, pack_shard

__all__ = ["Block", "draw_blocks"]

T = TypeVar("T")
# What reading a source raises: the Hub, the network, Arrow, and `datasets` for files of another format.
READ_ERRORS = (*HUB_ERRORS, pa.ArrowException, DatasetsError, tarfile.TarError)
BLOCK_ROWS = 64
NUM_DRAWN = 3  # rows of a source that are looked at
NUM_FILES = 16  # files that are opened where only first rows can be read


@dataclass(frozen=True)
class Block:
    """What the job would make of some neighbouring rows of a source."""

    num_rows: int
    num_bytes: int  # of images and texts, as the job's exchange carries them
    num_bytes_written: int  # of the row groups that they would fill on their own
    num_label_tokens: int
    num_duplicates: int
    quarantine: dict[str, int]  # rows by reason
    amounts: Amounts  # of each sample that can be packed
    drawn: list[DrawnRow]  # some of the rows, to be looked at


def draw_blocks(
    pinned: PinnedSource,
    num_rows: int,
    max_bytes: int,
    encoder: Encoder,
    settings: PackSettings,
    key: tuple[int, ...],
    field: str = "sources.0",
    retry_seconds: float = 20,
) -> Iterator[Block]:
    """Blocks of about `num_rows` rows together; fewer when the source ends or after `max_bytes` bytes.

    `field`, `retry_seconds`: as for `sources.pin`. Raises SourceError when rows cannot be read.
    """

    def ask(call: Callable[..., T], *args) -> T:
        try:
            return retrying(retry_seconds)(call, *args)
        except READ_ERRORS as error:
            raise SourceError(f"{field}.repo: rows of {pinned.source.repo} cannot be read: {one_line(error)}") from None

    reader, num_bytes, num_drawn = ask(open_reader, pinned), 0, 0
    seen: set[int] | None = set() if settings.duplicates == "drop" else None
    for part in _choose(reader, pinned, num_rows, key):
        rows = ask(_read, reader, part)
        if rows:
            block = make_block(rows, pinned, encoder, settings, seen, NUM_DRAWN - num_drawn)
            yield block
            num_drawn += len(block.drawn)
            num_bytes += block.num_bytes
        if num_bytes >= max_bytes:
            return


def _choose(reader: RowReader, pinned: PinnedSource, num_rows: int, key: tuple[int, ...]) -> list[Slice]:
    in_files = [file.num_rows for file in pinned.files]
    if not reader.is_random:
        files = permutation(len(in_files), *key)[:NUM_FILES].tolist()
        share = -(-num_rows // max(1, len(files)))
        in_files = [min(share, n) if i in files else 0 for i, n in enumerate(in_files)]
    size = max(1, min(BLOCK_ROWS, num_rows // 16))  # an interval needs sixteen blocks at least
    parts = [Slice(i, start, min(start + size, n)) for i, n in enumerate(in_files) for start in range(0, n, size)]
    order = permutation(len(parts), *key)
    # The last block of a file is shorter.
    read = np.cumsum([min(size, in_files[parts[i].file] - parts[i].start) for i in order.tolist()])
    chosen = order[: 1 + int(np.searchsorted(read, num_rows))]
    return [parts[i] for i in np.sort(chosen).tolist()]


def _read(reader: RowReader, part: Slice) -> list[dict]:
    """Rows of a slice with their provenance. A file without random access is read from its start."""
    batches = reader.read(part if reader.is_random else Slice(part.file))
    rows = (row for batch in batches for row in batch.to_pylist())
    return list(rows if reader.is_random else islice(rows, part.start, part.stop))


def make_block(
    rows: list[dict],
    pinned: PinnedSource,
    encoder: Encoder,
    settings: PackSettings,
    seen: set[int] | None,
    num_drawn: int = 0,
) -> Block:
    """What the job makes of rows with their provenance.

    `seen`: ids of the samples of earlier blocks; this block's are added. None keeps duplicates. `num_drawn`: of the
    first rows, to be looked at.
    """
    samples = plain_samples(rows, pinned.adapter, pinned.source)
    fresh = []
    for row, sample in zip(rows, samples, strict=True):
        sample_id = _sample_id(sample, row)
        if seen is None or sample_id not in seen:
            fresh.append(_sample_row(sample_id, row, sample, pinned.source.name))
    if seen is not None:
        seen.update(row["sample_id"] for row in fresh)
    packed = pack_shard(pd.DataFrame(fresh, columns=SAMPLE_SCHEMA.names, dtype=object), encoder, settings)
    ledger = Ledger(packed.ledger)
    places = [(row[FILE], row[ROW]) for row in rows[:num_drawn]]
    units = [unit for group in packed.groups for pack in group for unit in pack]
    return Block(
        num_rows=len(rows),
        num_bytes=sum(_num_bytes(sample) for sample in samples),
        num_bytes_written=_num_bytes_written(packed) if units else 0,
        num_label_tokens=sum(int((unit.encoded.labels >= 0).sum()) for unit in units),
        num_duplicates=len(rows) - len(fresh) + ledger.count(outcome="duplicate"),
        quarantine=ledger.reasons(),
        amounts=amounts_of([unit.encoded for unit in units]),
        drawn=list(draw_rows(places, packed, encoder)),
    )


def _sample_row(sample_id: int, row: dict, sample: PlainSample, source: str) -> dict:
    """A row of `contract.SAMPLE_SCHEMA`."""
    provenance = {"source": source, "file": row[FILE], "row": row[ROW]}
    return {"sample_id": sample_id, **provenance, "copy": 0, "kept": None, **sample._asdict()}


def _sample_id(sample: PlainSample, row: dict) -> int:
    """A hash of a sample's content, as the job's, by another function."""
    if sample.reason is not None:
        content = [row[FILE], row[ROW]]
    else:
        images = [hashlib.sha256(i["bytes"] or b"").hexdigest() if i else None for i in sample.images or []]
        content = [images, sample.messages, sample.tools]
    digest = hashlib.blake2b(json.dumps(content).encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _num_bytes(sample: PlainSample) -> int:
    images = sum(len(image["bytes"] or b"") for image in sample.images or [] if image)
    texts = (part["text"] for message in sample.messages or [] for part in message["content"])
    return images + sum(len(text.encode()) for text in texts if text)


def _num_bytes_written(packed: PackedShard) -> int:
    with tempfile.TemporaryDirectory(prefix="packing-forecast-") as folder:
        written = write.write_shard(str(Path(folder, "block")), "block", packed.row_groups())
    return sum(written["bytes"].to_pylist())
