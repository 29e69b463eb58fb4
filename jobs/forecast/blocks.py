"""Blocks of neighbouring rows, drawn by a seed over a source's files, and what the job would make of them.

For looking ahead without Spark (`jobs.forecast.forecast`). A block is read by what reads in the job, its rows become
samples (`plain_samples`), and the job's own `pack_shard` packs them, so that tokens, vision cost, images and bytes
are what they will be, and so is what is set aside. A block's bytes are let go before the next is read.

Of Parquet files and folders of images any block can be read; of other files the first rows, of up to NUM_FILES files.
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
from jobs.output.retries import HUB_ERRORS, one_line, retrying
from jobs.shards.ledger import Ledger
from jobs.sources.pin import open_reader
from jobs.sources.pinned import PinnedSource, SourceError
from jobs.sources.reading import RowReader, Slice
from packing_udfs.config import Source
from packing_udfs.encode.encoder import Encoder
from packing_udfs.hashing import permutation
from packing_udfs.parquet import write
from packing_udfs.shard.outcomes import LEDGER_SCHEMA
from packing_udfs.shard.pack_shard import PackSettings, pack_shard

T = TypeVar("T")
# What a source's reading raises: the Hub, the network, Arrow, and `datasets` for files that are not what they seem.
READ_ERRORS = (*HUB_ERRORS, pa.ArrowException, DatasetsError, tarfile.TarError)
BLOCK_ROWS = 64
NUM_FILES = 16  # of a source that are opened, where only first rows can be read


@dataclass(frozen=True)
class Block:
    """What is known of some neighbouring rows of a source."""

    num_rows: int
    num_bytes: int  # of images and texts, as the job's exchange carries them
    num_bytes_written: int  # of the row groups that they would be on their own
    num_label_tokens: int
    num_duplicates: int
    quarantine: dict[str, int]  # rows by reason
    lengths: np.ndarray  # int64 [samples], tokens of each sample that can be packed …
    vision_costs: np.ndarray  # … and its vision cost …
    num_images: np.ndarray  # … and images


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
    """Blocks of about `num_rows` rows, all of a source that has no more; fewer when they take more than `max_bytes`.

    `field`, `retry_seconds`: as for `sources.pin`. Raises SourceError for what cannot be read.
    """

    def asked(call: Callable[..., T], *args) -> T:
        try:
            return retrying(retry_seconds)(call, *args)
        except READ_ERRORS as error:
            raise SourceError(f"{field}.repo: rows of {pinned.source.repo} cannot be read: {one_line(error)}") from None

    reader, num_bytes = asked(open_reader, pinned), 0
    seen: set[int] | None = set() if settings.duplicates == "drop" else None
    for part in _choose(reader, pinned, num_rows, key):
        rows = asked(_rows, reader, part)
        if rows:
            block = make_block(rows, pinned, encoder, settings, seen)
            yield block
            num_bytes += block.num_bytes
        if num_bytes >= max_bytes:
            return


def _choose(reader: RowReader, pinned: PinnedSource, num_rows: int, key: tuple[int, ...]) -> list[Slice]:
    in_files = [file.num_rows for file in pinned.files]
    if not reader.is_random:
        files = permutation(len(in_files), *key)[:NUM_FILES].tolist()
        share = -(-num_rows // max(1, len(files)))
        in_files = [min(share, n) if i in files else 0 for i, n in enumerate(in_files)]
    size = max(1, min(BLOCK_ROWS, num_rows // 16))  # sixteen at least, or an interval would say nothing
    parts = [Slice(i, start, min(start + size, n)) for i, n in enumerate(in_files) for start in range(0, n, size)]
    order = permutation(len(parts), *key)
    read = np.cumsum([parts[i].stop - parts[i].start for i in order.tolist()])
    chosen = order[: 1 + int(np.searchsorted(read, num_rows))]  # ends of files are shorter
    return [parts[i] for i in np.sort(chosen).tolist()]


def _rows(reader: RowReader, part: Slice) -> list[dict]:
    return [row for batch in _read(reader, part) for row in batch]


def _read(reader: RowReader, part: Slice) -> Iterator[list[dict]]:
    """Rows of a slice with their provenance; of a file without random access by reading on from its start."""
    if reader.is_random:
        for batch in reader.read(part):
            yield batch.to_pylist()
        return
    rows = (row for batch in reader.read(Slice(part.file)) for row in batch.to_pylist())
    yield list(islice(rows, part.start, part.stop))


def make_block(
    rows: list[dict], pinned: PinnedSource, encoder: Encoder, settings: PackSettings, seen: set[int] | None
) -> Block:
    """What becomes of rows with their provenance. `seen`: ids of earlier blocks' samples, to which these are added."""
    samples = list(zip(rows, plain_samples(rows, pinned.adapter, pinned.source), strict=True))
    ids = [_sample_id(sample, row) for row, sample in samples]
    fresh = [i for i, sample_id in enumerate(ids) if seen is None or sample_id not in seen]
    if seen is not None:
        seen.update(ids)
    frame = pd.DataFrame([_sample_row(ids[i], *samples[i], pinned.source) for i in fresh], dtype=object)
    packed = pack_shard(frame, encoder, settings) if fresh else None
    units = [unit for group in packed.groups for pack in group for unit in pack] if packed else []
    ledger = Ledger(packed.ledger if packed else LEDGER_SCHEMA.empty_table())
    return Block(
        num_rows=len(rows),
        num_bytes=sum(_num_bytes(sample) for _, sample in samples),
        num_bytes_written=_written(packed) if units else 0,
        num_label_tokens=sum(int((unit.encoded.labels >= 0).sum()) for unit in units),
        num_duplicates=len(rows) - len(fresh) + ledger.count(outcome="duplicate"),
        quarantine=ledger.reasons(),
        lengths=np.asarray([len(unit.encoded.input_ids) for unit in units], np.int64),
        vision_costs=np.asarray([unit.encoded.vision_cost for unit in units], np.int64),
        num_images=np.asarray([len(unit.sizes) for unit in units], np.int64),
    )


def _sample_row(sample_id: int, row: dict, sample: PlainSample, source: Source) -> dict:
    """A row of `contract.SAMPLE_SCHEMA`."""
    return {
        "sample_id": sample_id,
        "source": source.name,
        "file": row[FILE],
        "row": row[ROW],
        "copy": 0,
        **sample._asdict(),
    }


def _sample_id(sample: PlainSample, row: dict) -> int:
    """A hash of what makes a sample, as the job's is, by another function."""
    if sample.reason is not None:
        content = [row[FILE], row[ROW]]
    else:
        images = [hashlib.sha256(i["bytes"] or b"").hexdigest() if i else None for i in sample.images]
        content = [images, sample.messages]
    digest = hashlib.blake2b(json.dumps(content).encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def _num_bytes(sample: PlainSample) -> int:
    if sample.reason is not None:
        return 0
    images = sum(len(image["bytes"] or b"") for image in sample.images if image)
    texts = (part["text"] for message in sample.messages for part in message["content"])
    return images + sum(len(text.encode()) for text in texts if text)


def _written(packed) -> int:
    with tempfile.TemporaryDirectory(prefix="packing-forecast-") as folder:
        written = write.write_shard(str(Path(folder, "block")), "block", packed.row_groups())
    return sum(written["bytes"].to_pylist())
