"""Small packed datasets by the contract, made without Spark."""

import io
import json
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from huggingface_hub import HfApi, close_session, constants
from PIL import Image

from jobs.local_hub import LocalHub
from packing_udfs import contract, manifest
from packing_udfs.parquet.write import write_shard
from packing_udfs.reader import PackedDataset

SEQ_LEN = 32
IMAGE_ID = 1000  # the placeholder; all other ids are below


def jpeg(rng: np.random.Generator, height: int, width: int) -> bytes:
    """Noise, so that it does not compress."""
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def make_pack(rng: np.random.Generator, number: int, edge: int) -> dict:
    """A pack of one to three samples whose ids are 10 × number + its place, each with up to two images in front."""
    lengths = rng.integers(3, SEQ_LEN // 3, size=rng.integers(1, 4)).tolist()
    num_images = [int(rng.integers(0, 3)) for _ in lengths]
    sizes = rng.integers(edge, 2 * edge, size=(sum(num_images), 2)).tolist()
    ids = rng.integers(1, 1000, sum(lengths)).tolist()
    starts = np.cumsum([0, *lengths[:-1]])
    for start, num in zip(starts, num_images, strict=True):
        ids[start : start + num] = [IMAGE_ID] * num
    untrained = {int(start) + i for start, num in zip(starts, num_images, strict=True) for i in range(max(num, 1))}
    labels = [contract.IGNORE_INDEX if i in untrained else token for i, token in enumerate(ids)]
    return {
        "input_ids": ids,
        "labels": labels,
        "sample_lengths": lengths,
        "sample_num_images": num_images,
        "image_num_tokens": [1] * len(sizes),
        "image_sizes": [{"height": h, "width": w} for h, w in sizes],
        "sample_ids": [10 * number + i for i in range(len(lengths))],
        "sample_sources": ["photos"] * len(lengths),
        "sample_files": ["a.parquet"] * len(lengths),
        "sample_rows": list(range(len(lengths))),
        "sample_kept": [None] * len(lengths),
        "images": [{"bytes": jpeg(rng, h, w), "path": None} for h, w in sizes],
        "num_tokens": len(ids),
        "num_label_tokens": len(ids) - len(untrained),
        "num_images": len(sizes),
        "vision_cost": len(sizes),
    }


def write_dataset(folder: Path, row_groups: list[list[int]], *, edge: int = 8, seed: int = 0, split="train") -> Path:
    """Write a split: for each file the number of packs in each of its row groups."""
    rng = np.random.default_rng(seed)
    number, rows = 0, []
    (folder / "data" / split).mkdir(parents=True, exist_ok=True)
    (folder / "manifest").mkdir(exist_ok=True)
    for i, sizes in enumerate(row_groups):
        tables = []
        for size in sizes:
            packs = [make_pack(rng, number + j, edge) for j in range(size)]
            tables.append(pa.Table.from_pylist(packs, schema=contract.PACK_SCHEMA))
            number += size
        name = f"data/{split}/{i:05d}.parquet"
        rows.append(write_shard(str(folder / name), name, tables))
    info = {"seq_len": SEQ_LEN, "processor": {"name": "owner/model", "revision": "0" * 40, "fingerprint": "f" * 64}}
    info_json, row_group_rows = manifest.dump(info, pa.concat_tables(rows))
    (folder / contract.MANIFEST_JSON.format(split=split)).write_bytes(info_json)
    (folder / contract.MANIFEST_PARQUET.format(split=split)).write_bytes(row_group_rows)
    return folder


@pytest.fixture(scope="session")
def packed(tmp_path_factory) -> Path:
    """50 packs: 12 row groups of 4 in three files, and one of 2."""
    return write_dataset(tmp_path_factory.mktemp("packed"), [[4] * 4, [4] * 4, [4] * 4 + [2]])


def rewrite_info(folder: Path, changes: dict) -> None:
    """Change keys of a manifest's JSON file in place."""
    path = folder / contract.MANIFEST_JSON.format(split="train")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def packs_of(batch: dict) -> list[int]:
    """The numbers of a batch's packs, as `make_pack` counted them."""
    return [int(ids[0]) // 10 for ids in batch["sample_ids"]]


@pytest.fixture(scope="session")
def hub_dataset(tmp_path_factory) -> Path:
    """64 packs of some 100 kB: 16 row groups of 4 in four files."""
    return write_dataset(tmp_path_factory.mktemp("hub_dataset"), [[4] * 4] * 4, edge=110)


def upload(repo: str, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of huggingface_hub's own call of its HTTP client
        HfApi().create_repo(repo, repo_type="dataset")
        HfApi().upload_folder(repo_id=repo, repo_type="dataset", folder_path=str(folder))


@pytest.fixture(scope="package")
def hub(tmp_path_factory, hub_dataset):
    """A local Hub that this process's huggingface_hub is set to, with `hub_dataset` as owner/packed.

    Until the last test here: other folders' tests use the Hub of the whole run.
    """
    with pytest.MonkeyPatch.context() as patch, LocalHub(tmp_path_factory.mktemp("hub"), xet=False) as hub:
        # huggingface_hub has read its environment when it was imported, so what it made of it is set as well.
        for name, value in hub.environment().items():
            patch.setenv(name, value)
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path_factory.mktemp("assets")))
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        upload("owner/packed", hub_dataset)
        yield hub
        close_session()


@pytest.fixture
def fresh_hub(hub):
    hub.requests.clear()
    yield
    hub.faults.clear()


def open_packed(name="owner/packed", **options) -> PackedDataset:
    return PackedDataset(name, **{"global_batch_size": 4, "decode": "bytes", "retry_seconds": 5} | options)


def ranges(hub, path=r".parquet") -> list:
    """Requests for ranges of data files."""
    return [record for record in hub.requests if "/data/" in record.path and path in record.path]
