"""Packed data for the reader's benches: packs of the size of FineVision's at seq_len 4,096, and a Hub that serves them.

A pack has three samples, 3,900 tokens and four JPEG images of some 100 kB; 32 packs a row group, 13 MB.
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
from huggingface_hub import HfApi, constants
from PIL import Image

from jobs.local_hub import LocalHub
from packing_udfs import contract, manifest
from packing_udfs.parquet.write import write_shard

SEQ_LEN = 4096
LENGTHS = [1000, 1500, 1400]
ROWS = 32


def jpegs(rng: np.random.Generator, count: int = 24) -> list[bytes]:
    """Pictures of 480 × 640 that compress to some 100 kB: smooth shapes under noise."""
    out = []
    for _ in range(count):
        shape = np.asarray(Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8)).resize((640, 480)), np.int16)
        noisy = (shape + rng.normal(0, 13, shape.shape)).clip(0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noisy).save(buffer, "JPEG", quality=88)
        out.append(buffer.getvalue())
    return out


def write(folder: Path, num_files: int, num_groups: int) -> int:
    """Write a split "train" of num_files × num_groups row groups; returns the number of packs."""
    rng = np.random.default_rng(0)
    pictures, number, rows = jpegs(rng), 0, []
    (folder / "data/train").mkdir(parents=True)
    for i in range(num_files):
        tables = []
        for _ in range(num_groups):
            packs = [_pack(rng, pictures, number + j) for j in range(ROWS)]
            tables.append(pa.Table.from_pylist(packs, schema=contract.PACK_SCHEMA))
            number += ROWS
        name = f"data/train/{i:05d}.parquet"
        rows.append(write_shard(str(folder / name), name, tables))
    write_manifest(folder, pa.concat_tables(rows))
    return number


def write_manifest(folder: Path, row_groups: pa.Table, processor: dict | None = None) -> None:
    (folder / "manifest").mkdir(exist_ok=True)
    info, rows = manifest.dump({"seq_len": SEQ_LEN, "processor": processor}, row_groups)
    (folder / contract.MANIFEST_JSON.format(split="train")).write_bytes(info)
    (folder / contract.MANIFEST_PARQUET.format(split="train")).write_bytes(rows)


def repeat(folder: Path, out: Path, times: int) -> None:
    """The same files `times` over, as links: a long epoch without the disk for it."""
    source = manifest.load(
        (folder / "manifest/train.json").read_bytes(), (folder / "manifest/train.parquet").read_bytes()
    ).row_groups
    (out / "data/train").mkdir(parents=True)
    tables = []
    for i in range(times):
        names = [f"data/train/{i:03d}-{Path(name).name}" for name in source["file"].to_pylist()]
        for name, new in dict(zip(source["file"].to_pylist(), names, strict=True)).items():
            os.link(folder / name, out / new)
        tables.append(source.set_column(0, "file", pa.array(names)))
    write_manifest(out, pa.concat_tables(tables))


def _pack(rng: np.random.Generator, pictures: list[bytes], number: int) -> dict:
    ids = rng.integers(0, 49_000, sum(LENGTHS)).tolist()
    starts = {0, LENGTHS[0], LENGTHS[0] + LENGTHS[1]}
    return {
        "input_ids": ids,
        "labels": [contract.IGNORE_INDEX if i in starts else token for i, token in enumerate(ids)],
        "sample_lengths": LENGTHS,
        "sample_num_images": [2, 1, 1],
        "image_num_tokens": [64] * 4,
        "image_sizes": [{"height": 480, "width": 640}] * 4,
        "sample_ids": [10 * number + i for i in range(3)],
        "sample_sources": ["photos", "charts", "photos"],
        "sample_files": ["data/train.parquet"] * 3,
        "sample_rows": [3 * number + i for i in range(3)],
        "sample_kept": [None] * 3,
        # A tail of its own makes each image another one to the store; decoders stop before it.
        "images": [
            {"bytes": pictures[i] + number.to_bytes(4, "big"), "path": None} for i in rng.integers(0, len(pictures), 4)
        ],
        "num_tokens": len(ids),
        "num_label_tokens": len(ids) - 3,
        "num_images": 4,
        "vision_cost": 4,
    }


class Hub:
    """A Hub in a process of its own, so that it does not share the interpreter's lock with who is measured."""

    def __init__(self, pipe):
        self._pipe = pipe
        self.url, self.environment = pipe.recv()

    def delay(self, seconds: float) -> None:
        """Every answer from now on comes this much later; the log of requests starts anew."""
        self._ask("delay", seconds)

    def lead_on(self) -> None:
        """From now on requests for large files are led to signed addresses, as huggingface.co's are."""
        self._ask("cdn", True)

    def requests(self) -> list[tuple[str, str | None, int]]:
        """(path, range, bytes sent) of each request since `delay`."""
        return self._ask("requests", None)

    def _ask(self, what: str, value):
        self._pipe.send((what, value))
        return self._pipe.recv()


@contextmanager
def serve(root: Path, repos: dict[str, Path]) -> Iterator[Hub]:
    """A Hub with these repositories; the folder of each is uploaded."""
    here, there = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_serve, args=(root, repos, there))
    process.start()
    there.close()  # so that a Hub that dies is noticed
    try:
        yield Hub(here)
    finally:
        here.close()
        process.join()


def _serve(root: Path, repos: dict[str, Path], pipe) -> None:
    with LocalHub(root, xet=False) as hub:
        constants.HF_HUB_DISABLE_XET = True  # its environment variable has been read already
        api = HfApi(endpoint=hub.url, token=hub.token)
        for repo, folder in repos.items():
            api.create_repo(repo, repo_type="dataset")
            api.upload_folder(repo_id=repo, repo_type="dataset", folder_path=str(folder))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # clients that end leave connections, of which the server tells
        pipe.send((hub.url, hub.environment()))
        while True:
            try:
                what, value = pipe.recv()
            except EOFError:  # nobody asks any more
                return
            if what == "cdn":
                hub.cdn = value
                pipe.send(None)
            elif what == "delay":
                hub.faults.clear()
                hub.requests.clear()
                if value:
                    hub.inject(delay=value, times=None)
                pipe.send(None)
            else:
                pipe.send([(record.path, record.range, record.bytes_out) for record in hub.requests])
