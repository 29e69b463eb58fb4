"""WebDataset tars and folders of images: read, numbered and counted, which the released source cannot."""

import io
import json
import tarfile
from collections import Counter

import pytest
import webdataset
from datasets import Features, Image, List, Value, load_dataset
from datasets.download import StreamingDownloadManager
from datasets.packaged_modules.webdataset.webdataset import WebDataset
from huggingface_hub import HfFileSystem
from pyspark.sql.types import StructType

from jobs.sources import hub_rows
from jobs.sources import pin as pin_module
from jobs.sources.huggingface import HuggingFace
from jobs.sources.media_folder import read_folder
from jobs.sources.pin import pin, read
from jobs.sources.pinned import SourceError
from jobs.sources.row_counts import Headers, count_rows
from tests.spark.conftest import demo_tree
from tests.spark.made_sources import answers, parquet, picture, source, upload


def tar(samples: list[dict]) -> bytes:
    out = io.BytesIO()
    with webdataset.TarWriter(out) as writer:
        for sample in samples:
            writer.write(sample)
    return out.getvalue()


def vqa_sample(i: int, **fields) -> dict:
    given = {"jpg": picture(i), "json": {"question": f"question {i}", "answer": f"answer {i}"}} | fields
    return {"__key__": f"set/{i:06d}", **given}


@pytest.fixture(scope="module")
def tars(spark) -> str:
    """Two tars of 20 and 13 samples; sample 5 has a broken picture, sample 22 none."""
    samples = [vqa_sample(i) for i in range(33)]
    samples[5]["jpg"] = b"no picture"
    del samples[22]["jpg"]
    files = {"data/train-0.tar": tar(samples[:20]), "data/train-1.tar": tar(samples[20:])}
    return upload("user/tars", files)


def test_rows_of_tars(spark, tars):
    pinned = pin(source(tars), "sources.0")
    assert [(file.path, file.num_rows) for file in pinned.files] == [("data/train-0.tar", 20), ("data/train-1.tar", 13)]
    rows = read(spark, pinned).collect()
    assert answers(rows) == sorted(f"answer {i}" for i in range(33))
    for row in rows:
        i = int(row.messages[1].content[0].text.removeprefix("answer "))
        assert (row.file, row.row) == (("data/train-0.tar", i) if i < 20 else ("data/train-1.tar", i - 20))
        assert row.messages[0].content[1].text == f"question {i}"
        if i not in (5, 22):
            assert bytes(row.images[0].bytes) == picture(i)


def test_tars_without_provenance(spark, tars):
    rows = spark.read.format(HuggingFace.name()).load(tars)
    assert rows.columns == ["jpg", "json", "__key__", "__url__"]
    found = {row["json"].answer: row.jpg and bytes(row.jpg.bytes) for row in rows.collect()}
    assert found == {f"answer {i}": {5: b"no picture", 22: None}.get(i, picture(i)) for i in range(33)}


def test_a_job_on_tars(run_demo, tars):
    """The whole way; the quarantine names the tar and the index in it."""
    report = run_demo("user/packed-tars", sources=[{"repo": tars, "name": "tars"}])
    (counts,) = report["sources"]
    assert (counts["num_rows"], counts["num_packed"], counts["num_quarantined"]) == (33, 31, 2)
    quarantine = load_dataset("user/packed-tars", "quarantine", split="train")
    assert sorted((row["reason"], row["file"], row["row"]) for row in quarantine) == [
        ("image_missing", "data/train-1.tar", 2),
        ("image_unidentified", "data/train-0.tar", 5),
    ]


@pytest.mark.parametrize("names", [
    ["a.jpg", "a.txt", "b.jpg", "b.txt"],
    ["x/a.jpg", "y/a.jpg", "y/a.seg.png", "y/b.b.jpg", "y/b.jpg"],
    ["a.jpg", "b.jpg", "a.txt"],  # come back to a: a sample of its own
    ["README", ".hidden.jpg", "__meta__.json", "a.jpg", "dir.d/c.jpg", "dir.d/d"],
])  # fmt: skip
def test_samples_of_tars_are_counted_as_they_are_read(tmp_path, names):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as file:
        for name in names:
            file.addfile(tarfile.TarInfo(name))
    members = StreamingDownloadManager().iter_archive(str(path))
    expected = len(list(WebDataset._get_pipeline_from_tar(str(path), members)))
    assert expected > 0
    repo = upload(f"user/tar-of-{len(names)}-{names[-1].replace('/', '-')}", {"data/train.tar": path.read_bytes()})
    assert count_rows(HfFileSystem(), f"datasets/{repo}/data/train.tar") == expected


@pytest.mark.parametrize(("num", "size", "most_bytes", "most_requests"), [
    (2000, 9_000, 1.05, 25),  # small members: once from end to end
    (30, 1_000_000, 0.15, 40),  # large members: headers alone
])  # fmt: skip
def test_what_counting_costs(session_hub, num, size, most_bytes, most_requests):
    data = tar([{"__key__": f"{i:06d}", "bin": bytes([i % 256]) * size} for i in range(num)])
    repo = upload(f"user/counted-{num}", {"data/train.tar": data})
    fs = HfFileSystem()
    fs.info(f"datasets/{repo}/data/train.tar")
    session_hub.requests.clear()
    assert count_rows(fs, f"datasets/{repo}/data/train.tar") == num
    records = [record for record in session_hub.requests if record.route == "resolve"]
    assert sum(record.bytes_out for record in records) < most_bytes * len(data)
    assert len(records) < most_requests


def test_headers_reads_what_is_there():
    class Counted(io.BytesIO):
        size = 1_000_000

    data = bytes(i * 7 % 251 for i in range(Counted.size))
    file = Headers(Counted(data))
    for at, size in [(0, 512), (512, 512), (600_000, 10), (600_010, 300_000), (3, 5), (999_990, 512), (2_000_000, 8)]:
        file.seek(at)
        assert file.read(size) == data[at : at + size]
        assert file.tell() == at + len(data[at : at + size])


# Folders


def metadata(numbers: range, folder: str = "") -> bytes:
    lines = [{"file_name": f"{folder}{i}.jpg", "text": f"answer {i}"} for i in numbers]
    return "\n".join(map(json.dumps, lines)).encode()


@pytest.fixture(scope="module")
def folder(spark) -> str:
    """Two folders of pictures, each with its metadata; in the second the pictures lie deeper."""
    files = {"train/a/metadata.jsonl": metadata(range(5)), "train/b/metadata.jsonl": metadata(range(5, 12), "deep/er/")}
    files |= {f"train/a/{i}.jpg": picture(i) for i in range(5)}
    files |= {f"train/b/deep/er/{i}.jpg": picture(i) for i in range(5, 12)}
    return upload("user/folder", files)


def test_rows_of_a_folder(spark, folder):
    pinned = pin(source(folder), "sources.0")
    assert [(file.path, file.num_rows) for file in pinned.files] == [
        ("train/a/metadata.jsonl", 5),
        ("train/b/metadata.jsonl", 7),
    ]
    assert pinned.num_bytes > sum(len(picture(i)) for i in range(12))
    rows = read(spark, pinned).collect()
    assert answers(rows) == sorted(f"answer {i}" for i in range(12))
    for row in rows:
        i = int(row.messages[1].content[0].text.removeprefix("answer "))
        assert (row.file, row.row) == (("train/a/metadata.jsonl", i) if i < 5 else ("train/b/metadata.jsonl", i - 5))
        assert bytes(row.images[0].bytes) == picture(i)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_slices_of_a_folder(monkeypatch, form, session_hub):
    """Every slice reads its own pictures and no other's."""
    lines = [{"file_name": f"{i}.jpg", "text": f"answer {i}"} for i in range(23)]
    table = "file_name,text\n" + "\n".join(f"{line['file_name']},{line['text']}" for line in lines)
    meta = {"csv": table.encode(), "parquet": parquet(lines)}[form]
    repo = upload(
        f"user/sliced-{form}", {f"train/metadata.{form}": meta} | {f"train/{i}.jpg": picture(i) for i in range(23)}
    )
    monkeypatch.setattr(hub_rows, "SLICE_ROWS", 10)
    data_source = HuggingFace({"path": repo, "provenance": "true"})
    schema = data_source.schema()
    reader = data_source.reader(StructType([schema[name] for name in ("image", "text", "_file", "_row")]))
    slices = reader.partitions()
    assert [(s.file, s.start, s.stop) for s in slices] == [(0, 0, 10), (0, 10, 20), (0, 20, None)]
    session_hub.requests.clear()
    rows = [row for batch in reader.read(slices[1]) for row in batch.to_pylist()]
    assert [(row["_row"], row["text"]) for row in rows] == [(i, f"answer {i}") for i in range(10, 20)]
    assert [row["image"]["bytes"] for row in rows] == [picture(i) for i in range(10, 20)]
    asked = Counter(record.path.partition("?")[0] for record in session_hub.requests if record.path.endswith(".jpg"))
    assert sorted(path.rpartition("/")[2] for path in asked) == sorted(f"{i}.jpg" for i in range(10, 20))
    assert set(asked.values()) == {1}
    rest = [row["_row"] for at in (0, 2) for batch in reader.read(slices[at]) for row in batch.to_pylist()]
    assert rest == [*range(10), 20, 21, 22]


@pytest.mark.parametrize(
    "name", ["../2.jpg", "/etc/passwd", "a/../../../2.jpg", "hf://datasets/user/x/1.jpg", "gone.jpg"]
)
def test_a_folder_is_not_left(name):
    fs = HfFileSystem()
    line = json.dumps({"file_name": name, "text": "x"}).encode()
    repo = "user/folder-left"
    fs._api.create_repo(repo, repo_type="dataset", exist_ok=True)
    fs._api.upload_file(path_or_fileobj=line, path_in_repo="train/metadata.jsonl", repo_id=repo, repo_type="dataset")
    fs.invalidate_cache()
    features = Features({"image": Image(), "text": Value("string")})
    (table,) = read_folder(fs, f"hf://datasets/{repo}/train/metadata.jsonl", features, slice(0, None), 4)
    assert table["image"].to_pylist() == [{"bytes": None, "path": name}]  # quarantined as image_missing


def test_lists_of_files_and_columns_of_files_with_names():
    fs = HfFileSystem()
    lines = [{"file_names": ["1.jpg", "2.jpg"], "left_file_name": "3.jpg"}, {"file_names": [], "left_file_name": None}]
    files = {f"train/{i}.jpg": picture(i) for i in (1, 2, 3)}
    files["train/metadata.jsonl"] = "\n".join(map(json.dumps, lines)).encode()
    repo = upload("user/folder-lists", files)
    features = Features({"images": List(Image()), "left": Image()})
    (table,) = read_folder(fs, f"hf://datasets/{repo}/train/metadata.jsonl", features, slice(0, None), 4)
    images = [[(i["path"], i["bytes"]) for i in some] for some in table["images"].to_pylist()]
    assert images == [[("1.jpg", picture(1)), ("2.jpg", picture(2))], []]
    assert [left and left["bytes"] for left in table["left"].to_pylist()] == [picture(3), None]


def test_a_folder_without_words(spark):
    upload("user/wordless", {f"train/{kind}/{i}.jpg": picture(i) for i, kind in enumerate(("cat", "dog"))})
    with pytest.raises(SourceError, match=r"user/wordless is a folder without metadata\.csv, "):
        pin(source("user/wordless"), "sources.0")


def test_the_ledger_finds_rows_that_reading_lost(run_demo, tars, monkeypatch):
    """The count is not the reading's own: one that says more than was read fails the run."""
    count = pin_module.count_rows
    monkeypatch.setattr(pin_module, "count_rows", lambda *args: count(*args) + 1)
    tree = demo_tree("user/lost-rows", sources=[{"repo": tars, "name": "tars"}])
    with pytest.raises(Exception, match="source tars: 35 rows in its files and 0 copies, 33 accounted for"):
        run_demo("user/lost-rows", sources=tree["sources"])
