"""Folders of Parquet files as sources: every row once with its place, and a folder that changes is refused."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.sources import parquet_folder, sample
from jobs.sources import pin as pin_module
from jobs.sources.pin import check_unchanged, pin, read
from jobs.sources.pinned import SourceError
from packing_udfs.config import Source
from tests.spark.made_sources import VQA, answers, picture, vqa_rows

ODD_NAMES = ("part-0.parquet", "a b/ö + #1.parquet", "lang=en/part-0.parquet", "_hidden.parquet", ".x/part-0.parquet")


def write(folder, name: str, rows: list[dict], schema: pa.Schema = VQA, **options) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), path, **options)


def folder_source(folder) -> Source:
    return Source(repo=str(folder))


def test_every_row_once_with_its_place(spark, tmp_path):
    """Several row groups, folders, names that a URI has to quote; hidden files are left out."""
    folder = tmp_path / "in put"
    for i, name in enumerate(ODD_NAMES):
        write(folder, name, vqa_rows(40 * i, 40 * i + 40), row_group_size=7)
    (folder / "README.md").write_text("not data")
    pinned = pin(folder_source(folder), "sources.0")
    assert [(file.path, file.num_rows) for file in pinned.files] == [(name, 40) for name in sorted(ODD_NAMES[:3])]
    assert pinned.num_bytes == sum((folder / name).stat().st_size for name in ODD_NAMES[:3])
    rows = parquet_folder.rows(spark, pinned)
    assert rows.columns == [*pinned.columns, "_file", "_row"]
    place = {row.answer: (row._file, row._row, bytes(row.image.bytes)) for row in rows.collect()}
    assert place == {
        f"answer {40 * i + j}": (name, j, picture(40 * i + j))
        for i, name in enumerate(ODD_NAMES[:3])
        for j in range(40)
    }
    samples = read(spark, pinned).collect()
    assert len(answers(samples)) == 120
    assert {(row.file, row.row) for row in samples} == {(name, j) for name in ODD_NAMES[:3] for j in range(40)}


def test_columns_may_differ_where_no_adapter_needs_them(spark, tmp_path):
    write(tmp_path, "0.parquet", [row | {"n": None} for row in vqa_rows(0, 3)], VQA.append(pa.field("n", pa.null())))
    words = pa.dictionary(pa.int32(), pa.string())
    wide = pa.schema([("n", pa.float16()), ("answer", pa.large_string()), ("question", words), VQA.field("image")])
    write(tmp_path, "1.parquet", [{**row, "n": 1.0} for row in vqa_rows(3, 6)], wide)
    pinned = pin(folder_source(tmp_path), "sources.0")
    assert answers(read(spark, pinned).collect()) == [f"answer {i}" for i in range(6)]
    reader = pin_module.open_reader(pinned)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    found = pa.Table.from_batches(batches).to_pylist()
    assert [(row["answer"], row["_file"], row["_row"]) for row in found] == [
        (f"answer {i}", f"{i // 3}.parquet", i % 3) for i in range(6)
    ]
    assert [row["image"]["bytes"] for row in found] == [picture(i) for i in range(6)]
    assert len(sample.read_sample(spark, [pinned], 4, 0).frame) == 4


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no Parquet files; it has nothing"),
        ({"x.txt": b"text"}, "has no Parquet files; it has x.txt"),
        ({"x.parquet": b"text"}, "x.parquet: it has no Parquet footer; it has 4 bytes"),
        ({"a%20b.parquet": b""}, "a%20b.parquet: Spark takes .* in a name for something else; rename it"),
        ({"a:b.parquet": b""}, "a:b.parquet: Spark takes .* in a name for something else; rename it"),
    ],
    ids=["nothing", "no Parquet", "garbage", "a name", "a scheme"],
)
def test_folders_that_cannot_be_read(tmp_path, files, message):
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=message) as error:
        pin(folder_source(tmp_path), "sources.2")
    assert str(error.value).startswith("sources.2.repo: ")
    assert str(tmp_path) in str(error.value)


def test_a_folder_of_a_name_that_spark_takes_for_something_else(tmp_path):
    folder = tmp_path / "a\\b"
    folder.mkdir()
    write(folder, "0.parquet", vqa_rows(0, 2))
    with pytest.raises(SourceError, match=r"sources\.0\.repo: \S+: Spark takes .* in a folder's name for something"):
        pin(folder_source(folder), "sources.0")


def test_places_that_are_not_there(tmp_path):
    with pytest.raises(SourceError, match=r"sources\.0\.repo: \S+/nowhere is no folder here"):
        pin(folder_source(tmp_path / "nowhere"), "sources.0")
    with pytest.raises(SourceError, match=r"sources\.0\.repo: .*nosuch"):
        pin(folder_source("nosuch://bucket/x"), "sources.0")


def test_files_of_other_columns(tmp_path):
    write(tmp_path, "0.parquet", vqa_rows(0, 2))
    write(
        tmp_path,
        "1.parquet",
        [{"image": None, "question": 1, "answer": "a"}],
        VQA.set(1, pa.field("question", pa.int64())),
    )
    with pytest.raises(SourceError, match=r"1\.parquet: its column question is int64, and string in 0\.parquet"):
        pin(folder_source(tmp_path), "sources.0")
    pq.write_table(pa.table({"image": [b"1"]}), tmp_path / "1.parquet")
    with pytest.raises(SourceError, match=r"1\.parquet: it lacks the columns question, answer, which other files"):
        pin(folder_source(tmp_path), "sources.0")


def test_a_folder_is_pinned_by_its_files(tmp_path):
    for i in range(2):
        write(tmp_path, f"{i}.parquet", vqa_rows(i, i + 1))
    first = pin(folder_source(tmp_path), "sources.0")
    assert pin(folder_source(tmp_path), "sources.0").commit == first.commit
    check_unchanged(first)
    (tmp_path / "README.md").write_text("no data")
    check_unchanged(first)
    stat = (tmp_path / "1.parquet").stat()
    os.utime(tmp_path / "1.parquet", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    with pytest.raises(SourceError, match=rf"files in {tmp_path} changed while they were read; nothing was published"):
        check_unchanged(first)
    write(tmp_path, "2.parquet", vqa_rows(2, 3))
    with pytest.raises(SourceError, match=r"changed while they were read, 2\.parquet for one; "):
        check_unchanged(first)
    assert pin(folder_source(tmp_path), "sources.0").commit != first.commit
