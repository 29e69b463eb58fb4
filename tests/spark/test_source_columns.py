"""Columns that differ between a source's files, columns that are kept, and archives of all kinds."""

import gzip
import io
import json
import zipfile

import pyarrow as pa
import pytest

from jobs.sources.pin import pin, read
from jobs.sources.pinned import SourceError
from tests.spark.made_sources import IMAGE, VQA, answers, parquet, picture, source, upload, vqa_row_file, vqa_rows
from tests.spark.test_webdataset import tar, vqa_sample

IMAGES = pa.schema([("images", pa.list_(IMAGE)), *(VQA.field(name) for name in ("question", "answer"))])


def place_of(kind: str, tmp_path, files: dict[str, bytes]) -> str:
    """Files in a folder, or in a repository of their own."""
    if kind == "hub":
        return upload(f"user/{tmp_path.name.replace('_', '-')}", files)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    return str(tmp_path)


def samples_of(spark, repo: str, **fields) -> list:
    return read(spark, pin(source(repo, **fields), "sources.0")).orderBy("file", "row").collect()


def listed(rows: list[dict]) -> list[dict]:
    return [{"images": [row["image"]], "question": row["question"], "answer": row["answer"]} for row in rows]


@pytest.mark.parametrize("kind", ["hub", "folder"])
@pytest.mark.parametrize(
    "empty", [pa.null(), pa.list_(pa.null()), pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.null())]))]
)
def test_a_column_that_is_null_in_the_first_file(spark, tmp_path, kind, empty):
    """Its type is that of the file with values."""
    image = {"bytes": picture(0), "path": None}
    value = None if pa.types.is_null(empty) else [] if pa.types.is_null(empty.value_type) else [image]
    first = [{"images": value, "question": "question 0", "answer": "answer 0"}]
    schema = IMAGES.set(0, pa.field("images", empty))
    files = {"train-0.parquet": parquet(first, schema), "train-1.parquet": parquet(listed(vqa_rows(1, 3)), IMAGES)}
    found = samples_of(spark, place_of(kind, tmp_path, files))
    assert [[bytes(one.bytes) for one in row.images] for row in found] == [
        [picture(0)] if value else [], [picture(1)], [picture(2)]
    ]  # fmt: skip
    assert answers(found) == ["answer 0", "answer 1", "answer 2"]


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_views_and_dictionaries(spark, tmp_path, kind):
    rows = vqa_rows(0, 3)
    image = pa.struct([("bytes", pa.binary_view()), ("path", pa.string_view())])
    table = pa.table({
        "image": pa.array([row["image"] for row in rows], image),
        "question": pa.array([row["question"] for row in rows]).dictionary_encode(),
        "answer": pa.array([row["answer"] for row in rows], pa.string_view()),
    })  # fmt: skip
    found = samples_of(spark, place_of(kind, tmp_path, {"train-0.parquet": parquet(table)}))
    assert answers(found) == ["answer 0", "answer 1", "answer 2"]
    assert [bytes(row.images[0].bytes) for row in found] == [picture(i) for i in range(3)]


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_types_that_differ_name_both_files(tmp_path, kind):
    other = parquet([{"image": None, "question": 1, "answer": "a"}], VQA.set(1, pa.field("question", pa.int64())))
    repo = place_of(kind, tmp_path, {"train-0.parquet": vqa_row_file(0, 1), "train-1.parquet": other})
    message = r"train-1\.parquet: its column question is int64, and string in train-0\.parquet$"
    with pytest.raises(SourceError, match=message):
        pin(source(repo), "sources.0")


@pytest.mark.parametrize("kind", ["hub", "folder"])
@pytest.mark.parametrize("at", [0, 1])
def test_a_damaged_footer_names_its_file(tmp_path, kind, at):
    whole = vqa_row_file(0, 3)
    damaged = whole[:-40] + b"\xff" * 32 + whole[-8:]
    files = {f"train-{i}.parquet": damaged if i == at else whole for i in range(2)}
    with pytest.raises(SourceError, match=rf"train-{at}\.parquet: its Parquet footer is damaged: [^\n]+$"):
        pin(source(place_of(kind, tmp_path, files)), "sources.0")


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_json_in_parquet_is_decoded(spark, tmp_path, kind):
    """A text trains without its quotes; a number stops its row."""
    turn = pa.struct([("role", pa.string()), ("content", pa.json_(pa.string()))])
    storage = pa.struct([("role", pa.string()), ("content", pa.string())])
    chats = [[{"role": "user", "content": '"q"'}, {"role": "assistant", "content": answer}] for answer in ('"a"', "42")]
    messages = pa.array(chats, pa.list_(storage)).cast(pa.list_(turn))
    repo = place_of(kind, tmp_path, {"train-0.parquet": parquet(pa.table({"messages": messages}))})
    good, bad = samples_of(spark, repo)
    assert [part.text for message in good.messages for part in message.content] == ["q", "a"]
    assert bad.reason == "part_unsupported: json"


def test_what_is_said_may_be_no_list_and_what_is_kept_may(spark):
    """In JSON lines, where one such row makes all of them JSON."""
    lines = [{"question": "q", "messages": [{"role": "user", "content": "q"}], "note": i} for i in range(3)]
    lines[1]["messages"][0]["content"] = ["q", {"a": 1}]
    lines[2]["note"] = {"seen": True}
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    found = samples_of(spark, upload("user/a-list-said", {"train.jsonl": data}), keep=["note"], ignore=["question"])
    assert [row.reason for row in found] == [None, "part_unsupported: json", None]
    assert [row.kept and json.loads(row.kept)["note"] for row in found] == ["0", None, '{"seen":true}']


def json_lines(name: str, column: str, values: list) -> str:
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    lines = [json.dumps({column: value, "messages": chat}) + "\n" for value in values]
    return upload(f"user/{name}", {"train.jsonl": "".join(lines).encode()})


def test_tools_of_several_types_stay_json(spark):
    tools = [[{"name": "f"}], '[{"name": "g"}]']
    found = samples_of(spark, json_lines("mixed-tools", "tools", tools))
    assert [json.loads(row.tools) for row in found] == [[{"name": "f"}], [{"name": "g"}]]


def test_a_system_message_that_is_no_text_in_each_row_is_refused():
    repo = json_lines("mixed-system", "system", ["be kind", ["be", "kind"]])
    with pytest.raises(SourceError, match="the column system is not text in each row"):
        pin(source(repo), "sources.0")


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_numbers_of_two_widths_and_structs_with_more_fields(spark, tmp_path, kind):
    more = pa.struct([("url", pa.string()), ("id", pa.int64())])
    kinds = [pa.struct([("id", pa.int32())]), more]
    files = {}
    for i, kind_of_file in enumerate(kinds):
        rows = [row | {"meta": {"id": i, "url": "u"}} for row in vqa_rows(i, i + 1)]
        files[f"train-{i}.parquet"] = parquet(rows, VQA.append(pa.field("meta", kind_of_file)))
    found = samples_of(spark, place_of(kind, tmp_path, files), keep=["meta"])
    assert [json.loads(row.kept) for row in found] == [{"meta": {"id": 0}}, {"meta": {"id": 1, "url": "u"}}]


# Kept columns

KEPT = VQA.append(pa.field("license", pa.string())).append(
    pa.field("meta", pa.struct([("url", pa.string()), ("id", pa.int64()), ("seen", pa.timestamp("ms", "UTC"))]))
)


@pytest.mark.parametrize("kind", ["hub", "folder"])
def test_kept_columns_go_with_each_sample(spark, tmp_path, kind):
    rows = [row | {"license": "cc-by" if i else None, "meta": {"url": "http://é/\n", "id": i, "seen": None}}
            for i, row in enumerate(vqa_rows(0, 2))]  # fmt: skip
    rows.append(vqa_rows(2, 3)[0] | {"license": None, "meta": None})
    repo = place_of(kind, tmp_path, {"train-0.parquet": parquet(rows, KEPT)})
    pinned = pin(source(repo, keep=["license", "meta.url", "meta.id"]), "sources.0")
    assert pinned.unused == ("meta.seen",)
    found = read(spark, pinned).orderBy("row").collect()
    assert [row.kept and json.loads(row.kept) for row in found] == [
        {"meta.url": "http://é/\n", "meta.id": 0},
        {"license": "cc-by", "meta.url": "http://é/\n", "meta.id": 1},
        None,
    ]


def test_times_are_kept_in_utc_whatever_the_sessions_zone(spark, tmp_path):
    rows = [vqa_rows(0, 1)[0] | {"license": None, "meta": {"url": None, "id": None, "seen": 0}}]
    repo = place_of("folder", tmp_path, {"0.parquet": parquet(rows, KEPT)})
    pinned = pin(source(repo, keep=["meta.seen"]), "sources.0")
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone in ("UTC", "Asia/Tokyo"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            assert read(spark, pinned).first().kept == '{"meta.seen":"1970-01-01T00:00:00.000Z"}'
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (["licence"], r"sources\.0\.keep: \S+: there is no column 'licence' with values; there are image "),
        (["image"], r"sources\.0\.keep: \S+: the column image holds bytes, and columns are kept as text"),
    ],
)
def test_what_cannot_be_kept(tmp_path, keep, message):
    repo = place_of("folder", tmp_path, {"0.parquet": vqa_row_file(0, 2)})
    with pytest.raises(SourceError, match=message):
        pin(source(repo, keep=keep), "sources.0")


# Archives


@pytest.mark.parametrize("name", ["train.tgz", "train.tar.gz"])
def test_a_compressed_tar(spark, tmp_path, name):
    data = gzip.compress(tar([vqa_sample(i) for i in range(3)]), mtime=0)
    found = samples_of(spark, upload(f"user/packed-{name.replace('.', '-')}", {f"data/{name}": data}))
    assert answers(found) == ["answer 0", "answer 1", "answer 2"]
    assert [(row.file, row.row) for row in found] == [(f"data/{name}", i) for i in range(3)]


def test_json_fields_that_nobody_needs_may_differ_from_sample_to_sample(spark):
    """Also among the first samples, of which `datasets` takes the types."""
    odd = [1, "n/a", None, [1, "x"], {"a": 1}, 2.5, {"a": "b"}]
    samples = [vqa_sample(i) for i in range(len(odd))]
    for sample, value in zip(samples, odd, strict=True):
        sample["json"] = {**sample["json"], "score": value}
    del samples[0]["json"]["score"]
    repo = upload("user/odd-json", {"data/train.tar": tar(samples)})
    pinned = pin(source(repo), "sources.0")
    assert pinned.unused == ("json.score",)
    assert answers(read(spark, pinned).collect()) == [f"answer {i}" for i in range(len(odd))]


def test_a_sample_without_its_image_may_be_among_the_first(spark):
    samples = [vqa_sample(i) for i in range(4)]
    del samples[1]["jpg"]
    found = samples_of(spark, upload("user/lost-first", {"data/train.tar": tar(samples)}))
    assert [len([one for one in row.images if one and one.bytes]) for row in found] == [1, 0, 1, 1]


def test_a_member_that_cannot_be_decoded_is_one_line(spark):
    samples = [vqa_sample(i) for i in range(40)]
    samples[30]["json"] = b"{no json"
    repo = upload("user/undecodable", {"data/train.tar": tar(samples)})
    pinned = pin(source(repo), "sources.0")
    with pytest.raises(Exception, match=r"data/train\.tar: one of the rows from 16 on has a file that cannot be decod"):
        read(spark, pinned).collect()


def test_a_zipped_folder_of_images_is_one_line():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("1.jpg", picture(1))
        file.writestr("metadata.csv", "file_name,text\n1.jpg,one\n")
    repo = upload("user/zipped", {"train.zip": out.getvalue()})
    with pytest.raises(SourceError, match=r"user/zipped: train\.zip is not read: unpack it, or store its samples as P"):
        pin(source(repo), "sources.0")
