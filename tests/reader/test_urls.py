"""Data that lies elsewhere than on a Hub, and data that no job of ours wrote."""

import shutil

import fsspec
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from torch.utils.data import DataLoader

from packing_udfs.contract import ContractError
from packing_udfs.parquet import without_manifest
from packing_udfs.parquet.without_manifest import MissingManifestWarning
from packing_udfs.storage.byte_source import FetchError, Stop
from packing_udfs.storage.hub import open_source
from tests.reader.conftest import open_packed, packs_of, ranges, upload

pytestmark = pytest.mark.usefixtures("fresh_hub")


class Bucket(MemoryFileSystem):
    """An object store over what is in memory: ranges of objects, each a request; nothing is opened, nor asked about."""

    protocol, asked = "bucket", []

    def cat_file(self, path, start=None, end=None, **kwargs):
        Bucket.asked.append((path.rpartition("/")[2], start, end))
        if (key := "/" + path.removeprefix("bucket://").lstrip("/")) not in self.store:
            raise FileNotFoundError(path)
        return self.store[key].getvalue()[start:end]

    def _open(self, *args, **kwargs):
        raise NotImplementedError

    info = ls = isdir = _open


fsspec.register_implementation("bucket", Bucket, clobber=True)


@pytest.mark.parametrize("url", ["memory://packed", "bucket://packed", "file://{folder}"])
def test_any_fsspec_url_is_read(packed, url):
    fsspec.filesystem("memory").put(str(packed), "/packed", recursive=True)
    remote, local = (list(open_packed(name)) for name in (url.format(folder=packed), str(packed)))
    assert [batch["images"] for batch in remote] == [batch["images"] for batch in local]


def test_a_bucket_is_asked_for_a_range_a_row_group(packed):
    fsspec.filesystem("memory").put(str(packed), "/packed", recursive=True)
    dataset = open_packed("bucket://packed")
    Bucket.asked.clear()
    assert len(list(dataset)) == 12
    rows = dataset.manifest.row_groups.to_pylist()
    spans = [(row["file"].rpartition("/")[2], row["offset"], row["offset"] + row["bytes"]) for row in rows]
    asked = [request for request in Bucket.asked if request in spans]
    assert len(Bucket.asked) - len(asked) == 3, "and one a file for its footer"
    assert len(set(asked)) == 12 == len(asked)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_read_an_fsspec_url(packed, context):
    options = {"global_batch_size": 4, "micro_batch_size": 2}
    dataset = open_packed(f"file://{packed}", **options)
    next(iter(dataset))  # what is open here is not the workers'
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
    assert [packs_of(batch) for batch in loader] == [packs_of(b) for b in open_packed(str(packed), **options)]


def test_a_local_file_that_is_too_short_is_said_at_once(packed, tmp_path):
    (tmp_path / "short").write_bytes(b"12345")
    source = open_source(str(tmp_path), retry_seconds=600)
    with pytest.raises(FetchError, match="short: ends 3 bytes before"):
        source.read("short", 2, 6, Stop())
    with pytest.raises(FetchError, match="FileNotFoundError"):
        source.read("absent", 0, 1, Stop())


@pytest.mark.parametrize(("guess", "num_requests"), [(64 << 10, 3), (100, 6)])
def test_a_repository_without_a_manifest_is_read_from_its_footers(
    hub, packed, tmp_path, monkeypatch, guess, num_requests
):
    monkeypatch.setattr(without_manifest, "_GUESS", guess)
    bare = shutil.copytree(packed, tmp_path / "bare")
    shutil.rmtree(bare / "manifest")
    repo = f"owner/bare{guess}"
    upload(repo, bare)
    states = []
    for name in (str(bare), repo):
        hub.requests.clear()
        with pytest.warns(MissingManifestWarning, match="the footers of its 3 files were read"):
            dataset = open_packed(name)
        assert len(ranges(hub, repo)) == (num_requests if name == repo else 0)
        given = open_packed(str(packed)).manifest.row_groups
        layout = ["file", "file_bytes", "footer_offset", "footer_bytes", "row_group", "offset", "bytes", "num_rows"]
        assert dataset.manifest.row_groups.select(layout).equals(given.select(layout))
        assert dataset.manifest.info["seq_len"] == max(
            n for path in packed.glob("data/train/*") for n in pq.read_table(path)["num_tokens"].to_pylist()
        )
        batches = list(dataset)
        seen = sorted(pack for batch in batches for pack in packs_of(batch))
        assert len(seen) == len(set(seen)) == 48
        states.append(batches[-1]["state"])
    assert states[0] == states[1]
    (bare / "data/train/00001.parquet").write_bytes(b"no Parquet at all")
    with pytest.warns(MissingManifestWarning), pytest.raises(ContractError, match=r"00001.parquet: is no Parquet"):
        open_packed(str(bare))
    with pytest.raises(FileNotFoundError, match=r"neither manifest/test.json nor data/test/\*.parquet"):
        open_packed(str(bare), split="test")


def test_packs_of_a_writer_without_statistics_are_read(hub, packed, tmp_path):
    """And an empty row group is none."""
    table = pq.read_table(packed / "data/train/00000.parquet")
    (tmp_path / "data/train").mkdir(parents=True)
    with pq.ParquetWriter(tmp_path / "data/train/0.parquet", table.schema, write_statistics=False) as writer:
        for part in (table.slice(0, 8), table.slice(0, 0), table.slice(8)):
            writer.write_table(part)
    upload("owner/plain", tmp_path)
    for name in (str(tmp_path), "owner/plain"):
        with pytest.warns(MissingManifestWarning):
            dataset = open_packed(name)
        assert dataset.manifest.info["seq_len"] == max(table["num_tokens"].to_pylist())
        assert dataset.manifest.row_groups["num_rows"].to_pylist() == [8, 8]
        assert sorted(pack for batch in dataset for pack in packs_of(batch)) == list(range(16))


def test_a_listing_that_fails_is_asked_for_again_or_said(hub, packed, tmp_path):
    bare = shutil.copytree(packed, tmp_path / "bare")
    shutil.rmtree(bare / "manifest")
    upload("owner/listed", bare)
    fault = hub.inject(
        route="list_tree", status=425, times=None
    )  # of those that pass, one that huggingface_hub does not wait for
    source = open_source("owner/listed", retry_seconds=0)
    with pytest.raises(FetchError, match=r"data: gave up after 1 attempts"):
        source.list_files("data")
    assert fault.hits
    hub.faults.clear()
    assert [path for path, _ in source.list_files("data")] == [f"data/train/0000{i}.parquet" for i in range(3)]
    with pytest.raises(FetchError, match=r"data: .*404"):
        open_source("owner/nowhere", retry_seconds=60).list_files("data")


def test_what_datasets_makes_of_packs_is_read(packed, tmp_path):
    """The same columns in files of other names, without our metadata; the rows here are those with an image."""
    import datasets

    source = datasets.load_dataset("parquet", data_files=str(packed / "data/train/*.parquet"), split="train")
    kept = source.filter(lambda num: num > 0, input_columns="num_images")
    (tmp_path / "data").mkdir()
    kept.to_parquet(tmp_path / "data/train-00000-of-00001.parquet", batch_size=8)
    with pytest.warns(MissingManifestWarning):
        dataset = open_packed(str(tmp_path), global_batch_size=1, decode="pil")
    numbers = [ids[0] // 10 for ids in kept["sample_ids"]]
    assert 20 < len(numbers) < 50
    assert sorted(pack for batch in dataset for pack in packs_of(batch)) == sorted(numbers)
