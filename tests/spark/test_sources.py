"""Sources of every shape on the Hub: each row once, with its place, each byte about once, and clear words otherwise."""

import csv
import io
import json

import pyarrow as pa
import pytest
from huggingface_hub import HfApi, HfFileSystem
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructField, StructType

from jobs.sources import reading
from jobs.sources.huggingface import PROVENANCE, HuggingFace
from jobs.sources.pin import open_reader, pin, read
from jobs.sources.pinned import PinnedSource, SourceError
from jobs.sources.row_counts import CountError, count_rows
from tests.spark.made_sources import IMAGE, VQA, answers, parquet, picture, source, upload, vqa_row_file, vqa_rows


def rows_of(pinned: PinnedSource) -> list[dict]:
    """A source's rows as the job's tasks read them, without Spark."""
    reader = open_reader(pinned)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def samples_of(spark, repo: str):
    return read(spark, pin(source(repo), "sources.0"))


def expect(start: int, stop: int) -> list[str]:
    return sorted(f"answer {i}" for i in range(start, stop))


def answers_of(repo: str) -> list[str]:
    return sorted(row["answer"] for row in rows_of(pin(source(repo), "sources.0")))


@pytest.mark.parametrize("batch_bytes", [1, 16 << 20])
def test_several_row_groups_and_empty_files(monkeypatch, session_hub, batch_bytes):
    files = {
        "data/train-0.parquet": parquet([], VQA),
        "data/train-1.parquet": vqa_row_file(0, 40, row_group_size=7),
        "data/train-2.parquet": parquet([], VQA),
        "data/train-3.parquet": vqa_row_file(40, 45),
    }
    monkeypatch.setattr(reading, "BATCH_BYTES", batch_bytes)
    pinned = pin(source(upload(f"user/row-groups-{batch_bytes}", files)), "sources.0")
    assert [(f.path, f.num_rows, f.num_bytes) for f in pinned.files] == [
        (path, num, len(files[path])) for path, num in zip(files, (0, 40, 0, 5), strict=True)
    ]
    place = {row["answer"]: (row["_file"], row["_row"]) for row in rows_of(pinned)}
    assert place == {f"answer {i}": ("data/train-1.parquet", i) for i in range(40)} | {
        f"answer {i}": ("data/train-3.parquet", i - 40) for i in range(40, 45)
    }
    reader = open_reader(pinned)
    session_hub.requests.clear()
    num_rows = [len(batch) for batch in reader.read(reader.partitions()[1])]
    assert num_rows == ([1] * 40 if batch_bytes == 1 else [40])
    # Of the file: one for the footer, one for its six adjacent row groups.
    assert len([record for record in session_hub.requests if record.route == "resolve"]) == 2


def test_columns_that_no_adapter_needs_may_differ_or_be_of_any_type():
    """The second file lacks a column, has others, and a rating where the first has none."""
    rows = vqa_rows(0, 4)
    one = pa.Table.from_pylist(rows[:2], VQA).append_column("note", pa.array([1, 2]))
    one = one.append_column("shape", pa.array([[[1.0]], [[2.0]]], pa.list_(pa.list_(pa.float16(), 1), 1)))
    two = pa.Table.from_pylist(rows[2:], VQA).append_column("other", pa.array(["x", "y"], pa.large_string()))
    upload("user/differing", {"data/train-0.parquet": parquet(one), "data/train-1.parquet": parquet(two)})
    assert answers_of("user/differing") == expect(0, 4)


def test_types_of_other_widths_are_read_as_the_usual_ones(spark):
    kind = pa.struct([("path", pa.large_string()), ("bytes", pa.large_binary())])
    schema = pa.schema([("images", pa.list_(kind, 1)), ("question", pa.dictionary(pa.int32(), pa.string())),
                        ("answer", pa.large_string())])  # fmt: skip
    rows = [{"images": [row["image"]], "question": row["question"], "answer": row["answer"]} for row in vqa_rows(0, 3)]
    upload("user/widths", {"data/train.parquet": parquet(rows, schema)})
    found = samples_of(spark, "user/widths").collect()
    assert answers(found) == expect(0, 3)
    assert {bytes(row.images[0].bytes) for row in found} == {picture(i) for i in range(3)}


@pytest.mark.parametrize("kind", ["binary", "string features", "struct without path"])
def test_images_that_only_the_card_calls_images(kind):
    features = [{"name": "image", "dtype": "image"}, *({"name": n, "dtype": "string"} for n in ("question", "answer"))]
    card = {"dataset_info": {"features": features}}
    stored, value = {
        "binary": (pa.binary(), lambda image: image["bytes"]),
        "string features": (IMAGE, lambda image: image),
        "struct without path": (pa.struct([("bytes", pa.large_binary())]), lambda image: {"bytes": image["bytes"]}),
    }[kind]
    rows = [row | {"image": value(row["image"])} for row in vqa_rows(0, 3)]
    schema = VQA.set(0, pa.field("image", stored))
    repo = f"user/card-{kind.replace(' ', '-')}"
    readme = f"---\n{json.dumps(card)}\n---\n".encode()
    upload(repo, {"README.md": readme, "data/train.parquet": parquet(rows, schema)})
    found = rows_of(pin(source(repo), "sources.0"))
    images = {row["answer"]: row["image"] if kind == "binary" else row["image"]["bytes"] for row in found}
    assert images == {f"answer {i}": picture(i) for i in range(3)}


def test_json_lines_and_csv(spark):
    chats = [
        [{"role": "user", "content": f"q {i}\n"}, {"role": "assistant", "content": f"answer {i}"}] for i in range(7)
    ]
    lines = "\n\n".join(json.dumps({"messages": chat}) for chat in chats) + "\n"
    upload(
        "user/jsonl",
        {"data/train.jsonl": lines.encode(), "data/test.json": json.dumps([{"messages": chats[0]}]).encode()},
    )
    pinned = pin(source("user/jsonl"), "sources.0")
    assert (pinned.num_rows, pinned.adapter.turns.field.name) == (7, "messages")
    found = read(spark, pinned).collect()
    assert answers(found) == expect(0, 7)
    assert sorted(row.row for row in found) == list(range(7))
    assert pin(source("user/jsonl", split="test"), "sources.0").num_rows == 1


def test_rows_are_counted_as_they_are_read(spark):
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([["id", "note"], [1, 'two\nlines, "quoted"'], [2, ""], [3, "x"]])
    upload("user/csv", {"data/train.csv": text.getvalue().encode()})
    assert spark.read.format(HuggingFace.name()).load("user/csv").count() == 3
    assert count_rows(HfFileSystem(), "hf://datasets/user/csv/data/train.csv") == 3
    with pytest.raises(CountError, match=r"rows of \.xml files cannot be counted; \.parquet, \.tar, "):
        count_rows(HfFileSystem(), "datasets/user/csv/data/train.xml")


def test_a_source_byte_crosses_the_network_once(spark, session_hub):
    """And the columns that no adapter needs not at all."""
    rows = [row | {"depth": picture(1000 + i, 64, "PNG")} for i, row in enumerate(vqa_rows(0, 300, side=128))]
    schema = VQA.append(pa.field("depth", pa.binary()))
    data = {f"data/train-{i}.parquet": parquet(rows[100 * i :][:100], schema, row_group_size=10) for i in range(3)}
    upload("user/once", data)
    needed = sum(len(row["image"]["bytes"]) for row in rows)
    whole = sum(map(len, data.values()))
    assert whole > 1.3 * needed > 3_000_000
    session_hub.requests.clear()
    pinned = pin(source("user/once"), "sources.0")
    samples = read(spark, pinned)
    before = sum(record.bytes_out for record in session_hub.requests if record.route == "resolve")
    session_hub.requests.clear()
    assert samples.selectExpr("sum(length(images[0].bytes)) n").first().n == needed
    records = [record for record in session_hub.requests if record.route == "resolve"]
    assert needed <= sum(record.bytes_out for record in records) < 1.05 * needed + 3 * (64 << 10)
    assert (
        len([record for record in records if record.method == "GET"]) <= 3 * (1 + 10) + 1
    )  # footers, row groups, and a footer for `datasets`
    assert before < 0.5 * whole


def test_with_provenance_the_columns_asked_for_are_read(spark):
    upload("user/columns", {"data/train.parquet": vqa_row_file(0, 3)})
    wanted = StructType([StructField("answer", StringType()), *PROVENANCE])
    rows = spark.read.format(HuggingFace.name()).option("provenance", "true").schema(wanted).load("user/columns")
    assert rows.columns == ["answer", "_file", "_row"]
    assert sorted(map(tuple, rows.collect())) == [(f"answer {i}", "data/train.parquet", i) for i in range(3)]


@pytest.fixture
def private(monkeypatch):
    repo = "user/private"
    if not HfApi().repo_exists(repo, repo_type="dataset"):
        upload(repo, {"data/train.parquet": vqa_row_file(0, 3)}, private=True)
    return repo


def test_a_private_repository_is_read_with_the_environments_token(spark, private):
    assert answers(samples_of(spark, private).collect()) == expect(0, 3)


def test_a_private_repository_without_a_token(private, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(SourceError, match=r"no dataset user/private at http.*, or HF_TOKEN may not read it"):
        pin(source(private), "sources.0")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "cannot be read as a dataset: "),
        ({"data/train.parquet": b"no parquet at all"}, r"train\.parquet: it has no Parquet footer; it has 17 bytes"),
        (
            {"data/train-0.parquet": vqa_row_file(0, 1), "data/train-1.parquet": b""},
            r"data/train-1\.parquet: it has no Parquet footer; it has 0 bytes",
        ),
        (
            {"data/train-0.parquet": vqa_row_file(0, 1), "data/train-1.parquet": parquet(pa.table({"image": [b"1"]}))},
            r"data/train-1\.parquet: it lacks the columns question, answer, which other files have; it has image",
        ),
        (
            {
                "data/train-0.parquet": vqa_row_file(0, 1),
                "data/train-1.parquet": parquet([{"image": None, "question": {"en": "q"}, "answer": "a"}],
                                                VQA.set(1, pa.field("question", pa.struct([("en", pa.string())])))),
            },
            r"train-1\.parquet: its column question is struct<en: string>, and string in data/train-0\.parquet",
        ),
        ({"train.xml": b"<a><b/></a>"}, "cannot be read as a dataset: "),
    ],
    ids=["nothing", "garbage", "an empty file", "missing columns", "another type", "xml"],
)  # fmt: skip
def test_files_that_cannot_be_read(files, message, request):
    repo = upload(f"user/unreadable-{request.node.callspec.id.replace(' ', '-')}", files)
    with pytest.raises(SourceError, match=message) as error:
        pin(source(repo), "sources.3")
    assert str(error.value).startswith("sources.3.")
    assert repo in str(error.value)


def test_the_data_source_is_as_it_was_without_provenance(spark):
    upload("user/plain", {"data/train.parquet": vqa_row_file(0, 3)})
    rows = spark.read.format(HuggingFace.name()).option("columns", '["answer"]').load("user/plain")
    assert rows.columns == ["answer"]
    assert HuggingFace({"path": "user/plain"}).schema().names == VQA.names


@pytest.mark.parametrize("repo", ["user/for-tasks-parquet", "user/for-tasks-csv"])
def test_what_a_task_is_sent_needs_no_torch(session_hub, repo):
    """Workers have none, while the driver may: what is pickled must not refer to it."""
    import torch

    files = {"data/train-0.parquet": vqa_row_file(0, 2)} if "parquet" in repo else {"data/train.csv": b"a,b\n1,2\n"}
    upload(repo, files)
    HfFileSystem.clear_instance_cache()  # listings of what was read before travel with it
    data_source = HuggingFace({"path": repo, "provenance": "true"})
    reader = data_source.reader(data_source.schema())
    sent = cloudpickle.dumps((reader, data_source))
    assert torch.__name__.encode() not in sent
    assert len(sent) < 20_000
