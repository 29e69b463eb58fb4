"""Rows of each kind of dataset as samples: what a reader of the row would say it means, in the chat-template form."""

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from jobs import adapters
from jobs.adapters.provenance import FILE, ROW
from jobs.adapters.samples import PlainSample, plain_samples
from packing_udfs.config import Source
from packing_udfs.contract import SAMPLE_SCHEMA

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
IMG, VID = object(), object()  # placeholders in `said`


IMAGES = ("images", pa.list_(IMAGE))


def image(name: str) -> dict:
    return {"bytes": name.encode(), "path": f"{name}.jpg"}


def samples(spark, table: pa.Table, **given) -> list:
    """The table's rows as samples, in order."""
    source = Source(repo="user/x", name="x", **given)
    adapter = adapters.choose(from_arrow_schema(table.schema), source)
    table = table.append_column(FILE, pa.repeat("a.parquet", len(table)))
    table = table.append_column(ROW, pa.array(range(len(table)), pa.int64()))
    rows = adapters.to_samples(spark.createDataFrame(table), adapter, source)
    assert sorted(rows.columns) == sorted(SAMPLE_SCHEMA.names)
    found = sorted(rows.collect(), key=lambda row: row.row)
    assert [row.row for row in found] == list(range(len(table)))
    for row, plain in zip(found, plain_samples(table.to_pylist(), adapter, source), strict=True):
        assert (row.messages is None) == (row.reason is not None)
        assert plain_of(row) == plain
    return found


def plain_of(row) -> PlainSample:
    """A row that Spark made, as the plain adapters make it."""
    values = row.asDict(recursive=True)
    images = values["images"] and [i and {**i, "bytes": i["bytes"] and bytes(i["bytes"])} for i in values["images"]]
    return PlainSample(values["messages"], images, values["reason"], values["num_turns_dropped"], values["tools"])


def said(row) -> list[tuple]:
    """A sample's messages as (role, part, part …), with IMG and VID for placeholders."""
    shown = {"image": IMG, "video": VID}
    return [(m.role, *(p.text if p.type == "text" else shown[p.type] for p in m.content)) for m in row.messages]


def images(row) -> list[str]:
    return [bytes(i.bytes).decode() for i in row.images]


def kind_of(table: pa.Table, **given) -> str:
    return adapters.name_of(adapters.choose(from_arrow_schema(table.schema), Source(repo="user/x", **given)))


# FineVision

TURN = pa.struct([("user", pa.string()), ("assistant", pa.string())])


def finevision(rows: list[dict], **columns) -> pa.Table:
    schema = {"images": pa.list_(IMAGE), "texts": pa.list_(TURN)} | columns
    return pa.Table.from_pylist(rows, pa.schema(list(schema.items())))


def test_finevision(spark):
    turns = [{"user": "q0", "assistant": "a0"}, {"user": "q1", "assistant": "a1"}]
    rows = [
        {"images": [image("1"), image("2")], "texts": turns},
        {"images": None, "texts": turns[:1]},
        {"images": [], "texts": []},
        {"images": [], "texts": None},
        {"images": [image("1")], "texts": [{"user": "q", "assistant": None}]},
        {"images": [image("1")], "texts": [None]},
    ]
    found = samples(spark, finevision(rows))
    assert said(found[0]) == [("user", IMG, IMG, "q0"), ("assistant", "a0"), ("user", "q1"), ("assistant", "a1")]
    assert images(found[0]) == ["1", "2"]
    assert [i.path for i in found[0].images] == ["1.jpg", "2.jpg"]
    assert (said(found[1]), images(found[1])) == ([("user", "q0"), ("assistant", "a0")], [])
    assert [row.reason for row in found] == [None, None, *["texts_missing"] * 4]
    assert all(row.images is None for row in found[2:])


def test_finevision_ratings(spark):
    turns = [{"user": f"q{i}", "assistant": f"a{i}"} for i in range(3)]
    rows = [
        {"images": [image("1")], "texts": turns, "relevance_ratings": [2, 5, None]},
        {"images": [image("1")], "texts": turns, "relevance_ratings": [2, 2, 2]},
        {"images": [image("1")], "texts": turns, "relevance_ratings": None},
    ]
    table = finevision(rows, relevance_ratings=pa.list_(pa.int64()))
    found = samples(spark, table, min_ratings={"relevance": 3})
    assert said(found[0]) == [("user", IMG, "q1"), ("assistant", "a1"), ("user", "q2"), ("assistant", "a2")]
    assert [(row.reason, row.num_turns_dropped) for row in found] == [(None, 1), ("ratings", 3), (None, 0)]


def test_finevision_as_a_sequence_of_a_dict(spark):
    """Once `datasets` stored a list of dicts as a dict of lists."""
    kind = pa.struct([("user", pa.list_(pa.string())), ("assistant", pa.list_(pa.string()))])
    rows = [
        {"images": [image("1")], "texts": {"user": ["q0", "q1"], "assistant": ["a0", "a1"]}},
        {"images": [], "texts": {"user": ["q0", "q1"], "assistant": ["a0"]}},
        {"images": [], "texts": None},
    ]
    found = samples(spark, finevision(rows, texts=kind))
    assert said(found[0]) == [("user", IMG, "q0"), ("assistant", "a0"), ("user", "q1"), ("assistant", "a1")]
    assert [row.reason for row in found] == [None, "texts_missing", "texts_missing"]


def test_columns_in_another_case_and_fields_in_another_order(spark):
    kind = pa.struct([("Path", pa.string()), ("Bytes", pa.binary())])
    turn = pa.struct([("Assistant", pa.string()), ("User", pa.string())])
    schema = pa.schema([("Images", pa.list_(kind)), ("TEXTS", pa.list_(turn))])
    rows = [{"Images": [{"Path": "p.jpg", "Bytes": b"1"}, None], "TEXTS": [{"User": "q", "Assistant": "a"}]}]
    (found,) = samples(spark, pa.Table.from_pylist(rows, schema))
    assert said(found) == [("user", IMG, IMG, "q"), ("assistant", "a")]
    assert (bytes(found.images[0].bytes), found.images[0].path, found.images[1]) == (b"1", "p.jpg", None)


# Messages

OPENAI = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
PART = pa.struct([("type", pa.string()), ("text", pa.string()), ("index", pa.int64())])
PARTS = pa.list_(pa.struct([("role", pa.string()), ("content", pa.list_(PART))]))
SHAREGPT = pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())]))


def messages_table(rows: list[dict], kind, media=IMAGES, name: str = "messages") -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema([media, (name, kind)]))


def test_openai_text_has_its_images_before_the_first_question(spark):
    chat = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "what is it?"},
        {"role": "assistant", "content": "a tag"},
    ]
    rows = [{"images": [image("1"), image("2")], "messages": chat}, {"images": None, "messages": chat}]
    found = samples(spark, messages_table(rows, OPENAI))
    told = [("system", "be kind"), ("user", "what is it?"), ("assistant", "a tag")]
    assert said(found[0]) == [told[0], ("user", IMG, IMG, "what is it?"), told[2]]
    assert (said(found[1]), images(found[1])) == (told, [])


def test_openai_parts_are_placeholders_where_they_stand(spark):
    def part(kind, text=None):
        return {"type": kind, "text": text}

    chat = [
        {"role": "user", "content": [part("text", "compare"), part("image"), part("text", "with"), part("image_url")]},
        {"role": "assistant", "content": [part("output_text", "same")]},
    ]
    rows = [{"images": [image("1"), image("2")], "messages": chat}]
    (found,) = samples(spark, messages_table(rows, PARTS))
    assert said(found) == [("user", "compare", IMG, "with", IMG), ("assistant", "same")]


@pytest.mark.parametrize(
    ("chat", "reason"),
    [
        (None, "texts_missing"),
        ([], "texts_missing"),
        ([None], "texts_missing"),
        ([{"role": "user", "content": None}], "texts_missing"),
        ([{"role": None, "content": []}], "texts_missing"),
        ([{"role": "user", "content": [None]}], "texts_missing"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "texts_missing"),
        ([{"role": "user", "content": [{"type": "audio", "text": None}]}], "part_unsupported: audio"),
    ],
)
def test_conversations_that_are_none(spark, chat, reason):
    (found,) = samples(spark, messages_table([{"images": [image("1")], "messages": chat}], PARTS))
    assert (found.reason, found.images) == (reason, None)


def test_images_inside_the_content(spark):
    kind = pa.struct([("bytes", pa.large_binary()), ("path", pa.string())])
    part = pa.struct([("type", pa.string()), ("text", pa.string()), ("image", kind)])
    schema = pa.list_(pa.struct([("role", pa.string()), ("content", pa.list_(part))]))
    chat = [
        {"role": "user", "content": [{"type": "image", "image": image("1")}, {"type": "text", "text": "and"},
                                     {"type": "image", "image": image("2")}]},
        {"role": "assistant", "content": [{"type": "text", "text": "so"}]},
        {"role": "user", "content": [{"type": "image", "image": image("3")}]},
    ]  # fmt: skip
    table = pa.Table.from_pylist([{"messages": chat}, {"messages": None}], pa.schema([("messages", schema)]))
    assert kind_of(table) == "messages"
    found = samples(spark, table)
    assert said(found[0]) == [("user", IMG, "and", IMG), ("assistant", "so"), ("user", IMG)]
    assert images(found[0]) == ["1", "2", "3"]
    assert found[1].reason == "texts_missing"


SPLIT = {
    "<image>\nWhat is it?": [IMG, "What is it?"],
    "What is it?\n<image>": ["What is it?", IMG],
    "<image><image>": [IMG, IMG],
    "a <image> b\n\n<image>\n\nc": ["a ", IMG, " b\n", IMG, "\nc"],
    "<Image> <video> <images>": ["<Image> <video> <images>"],
    "": [""],
    "$1 \\n <image>": ["$1 \\n ", IMG],
}


@pytest.mark.parametrize("name", ["conversations", "messages"])
def test_sharegpt_markers_are_placeholders(spark, name):
    rows = [
        {"image": image("1"), name: [{"from": "human", "value": text}, {"from": "gpt", "value": "a"}]} for text in SPLIT
    ]
    found = samples(spark, messages_table(rows, SHAREGPT, ("image", IMAGE), name))
    assert [said(row) for row in found] == [[("user", *parts), ("assistant", "a")] for parts in SPLIT.values()]
    assert {tuple(images(row)) for row in found} == {("1",)}


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.sampled_from(["<image>", "<video>", "\n", "é", "< ", "$", "\\"]), max_size=6),
        min_size=40,
        max_size=40,
    )
)
def test_sharegpt_text_is_split_as_a_plain_split_would(spark, texts):
    texts = ["".join(text) for text in texts]
    schema = pa.schema([("image", IMAGE), ("video", IMAGE), ("conversations", SHAREGPT)])
    rows = [{"image": None, "video": None, "conversations": [{"from": "human", "value": text}]} for text in texts]
    for text, row in zip(texts, samples(spark, pa.Table.from_pylist(rows, schema)), strict=True):
        parts = said(row)[0][1:]
        assert parts.count(IMG) == text.count("<image>")
        assert parts.count(VID) == text.count("<video>")
        words = [part for part in parts if isinstance(part, str)]
        assert not any("<image>" in word or "<video>" in word for word in words)
        assert all(words) or text == ""
        rest = text.replace("<image>", "").replace("<video>", "")
        assert "".join(words).replace("\n", "") == rest.replace("\n", "")


def test_sharegpt_roles(spark):
    names = ["system", "human", "gpt", "User", "assistant", "tool", None]
    rows = [{"image": None, "conversations": [{"from": name, "value": "x"}]} for name in names]
    found = samples(spark, messages_table(rows, SHAREGPT, ("image", IMAGE), "conversations"))
    roles = [row.messages[0].role if row.messages else None for row in found]
    assert roles == ["system", "user", "assistant", "user", "assistant", "tool", None]


def test_sharegpt_as_a_sequence_of_a_dict(spark):
    kind = pa.struct([("from", pa.list_(pa.string())), ("value", pa.list_(pa.string()))])
    rows = [{"image": image("1"), "conversations": {"from": ["human", "gpt"], "value": ["<image>q", "a"]}}]
    (found,) = samples(spark, messages_table(rows, kind, ("image", IMAGE), "conversations"))
    assert said(found) == [("user", IMG, "q"), ("assistant", "a")]


def test_sharegpt_image_markers_stand_for_videos_where_there_are_only_videos(spark):
    rows = [{"video": image("1"), "conversations": [{"from": "human", "value": "<image>\nq <video>"}]}]
    (found,) = samples(spark, messages_table(rows, SHAREGPT, ("video", IMAGE), "conversations"))
    assert said(found) == [("user", VID, "q ", VID)]


def test_images_come_before_videos(spark):
    schema = pa.schema([("images", pa.list_(IMAGE)), ("videos", pa.list_(IMAGE)), ("conversations", SHAREGPT)])
    rows = [
        {
            "images": [image("i")],
            "videos": [image("v")],
            "conversations": [{"from": "human", "value": "<video><image>"}],
        }
    ]
    (found,) = samples(spark, pa.Table.from_pylist(rows, schema))
    assert (said(found), images(found)) == ([("user", VID, IMG)], ["i", "v"])


# Text


def test_text_alone(spark):
    rows = [{"messages": [{"from": "human", "value": "what is it?"}, {"from": "gpt", "value": "a tag"}]}]
    table = pa.Table.from_pylist(rows, pa.schema([("messages", SHAREGPT)]))
    assert kind_of(table) == "text"
    (found,) = samples(spark, table)
    assert (said(found), images(found)) == ([("user", "what is it?"), ("assistant", "a tag")], [])


def test_markers_in_a_source_without_images_are_text_only_if_somebody_says_so(spark):
    rows = [{"messages": [{"from": "human", "value": "what is <image>?"}, {"from": "gpt", "value": "a tag"}]}]
    table = pa.Table.from_pylist(rows, pa.schema([("messages", SHAREGPT)]))
    (found,) = samples(spark, table)
    assert found.reason.startswith("image_count: <image> or <video> in a source without")
    (found,) = samples(spark, table, adapter="text")
    assert said(found) == [("user", "what is <image>?"), ("assistant", "a tag")]


def test_text_leaves_images_aside(spark):
    rows = [{"images": [image("1")], "messages": [{"role": "user", "content": "q"}]}]
    (found,) = samples(spark, messages_table(rows, OPENAI), adapter="text")
    assert (said(found), images(found)) == ([("user", "q")], [])


# Question and answer


def test_vqa(spark):
    schema = pa.schema([("image", IMAGE), ("question", pa.string()), ("answer", pa.string())])
    rows = [
        {"image": image("1"), "question": "what is <image>?", "answer": "a tag"},
        {"image": None, "question": "q", "answer": "a"},
        {"image": image("1"), "question": None, "answer": "a"},
        {"image": image("1"), "question": "q", "answer": None},
        {"image": image("1"), "question": "q", "answer": " "},
    ]
    found = samples(spark, pa.Table.from_pylist(rows, schema))
    assert said(found[0]) == [("user", "what is ", IMG, "?"), ("assistant", "a tag")]
    assert list(found[1].images) == [None]  # goes to the quarantine as an image without bytes
    assert [row.reason for row in found] == [None, None, *["texts_missing"] * 3]


ANSWERS = {
    ("b", "a", "b"): "b",
    ("a", "b", "b", "a"): "a",  # level: the earliest
    ("c",): "c",
    (None, "d", None): "d",
    (): None,
    None: None,
}


@pytest.mark.parametrize("kind", ["texts", "structs"])
def test_vqa_with_several_answers(spark, kind):
    answers = [None if key is None else list(key) for key in ANSWERS]
    value = pa.string()
    if kind == "structs":  # as in VQAv2
        value = pa.struct([("answer", pa.string()), ("answer_id", pa.int64())])
        answers = [a and [{"answer": text, "answer_id": 1} for text in a] for a in answers]
    schema = pa.schema([("image", IMAGE), ("question", pa.string()), ("answers", pa.list_(value))])
    rows = [{"image": image("1"), "question": "q", "answers": given} for given in answers]
    found = samples(spark, pa.Table.from_pylist(rows, schema))
    assert [row.messages and row.messages[1].content[0].text for row in found] == list(ANSWERS.values())
    assert [row.reason for row in found] == [None] * 4 + ["texts_missing"] * 2


# Captions


def test_captions(spark):
    schema = pa.schema([("image", IMAGE), ("caption", pa.string())])
    rows = [{"image": image("1"), "caption": "a cat"}, {"image": image("1"), "caption": None}]
    found = samples(spark, pa.Table.from_pylist(rows, schema), prompt="What is there?")
    assert said(found[0]) == [("user", IMG, "What is there?"), ("assistant", "a cat")]
    assert found[1].reason == "texts_missing"


def test_captions_of_images_that_are_bytes_alone(spark):
    schema = pa.schema([("image", pa.binary()), ("text", pa.list_(pa.string()))])
    rows = [{"image": b"1", "text": [None, "first", "second"]}, {"image": b"1", "text": []}]
    found = samples(spark, pa.Table.from_pylist(rows, schema))
    assert said(found[0]) == [("user", IMG, "Describe the image."), ("assistant", "first")]
    assert (bytes(found[0].images[0].bytes), found[0].images[0].path) == (b"1", None)
    assert found[1].reason == "texts_missing"


# WebDataset columns, and names that the configuration gives


def test_columns_named_by_extension(spark):
    json = pa.struct([("question", pa.string()), ("answer", pa.string())])
    schema = pa.schema([("10.png", IMAGE), ("2.jpg", IMAGE), ("json", json), ("__key__", pa.string())])
    rows = [
        {"10.png": image("b"), "2.jpg": image("a"), "json": {"question": "q", "answer": "a"}},
        {"10.png": None, "2.jpg": image("a"), "json": {"question": "q", "answer": "a"}},
        {"10.png": image("b"), "2.jpg": image("a"), "json": None},
    ]
    table = pa.Table.from_pylist(rows, schema)
    assert kind_of(table) == "vqa"
    found = samples(spark, table)
    assert (said(found[0]), images(found[0])) == ([("user", IMG, IMG, "q"), ("assistant", "a")], ["a", "b"])
    assert images(found[1]) == ["a"]
    assert found[2].reason == "texts_missing"


def test_names_that_the_configuration_gives(spark):
    inner = pa.struct([("alt", pa.string()), ("q", pa.string())])
    schema = pa.schema([("picture", IMAGE), ("meta", inner), ("text", pa.string())])
    table = pa.Table.from_pylist([{"picture": image("1"), "meta": {"alt": "a cat"}, "text": "no"}], schema)
    (found,) = samples(spark, table, columns={"image": "picture", "caption": "meta.alt"})
    assert (said(found)[1], images(found)) == (("assistant", "a cat"), ["1"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"columns": {"caption": "alt"}},
            r"there is no column 'alt' with values; there are image struct<bytes:binary,path:string>, t",
        ),
        ({"columns": {"caption": "text.en"}}, "there is no column 'text.en'"),
        ({"columns": {"captions": "text"}}, "no adapter has a column 'captions'; they have images, image, texts, "),
        ({"adapter": "vqa"}, "the adapter vqa needs image or video, question, answer .* the columns are image struct"),
        ({"adapter": "text"}, "the adapter text needs messages or conversations"),
    ],
)
def test_columns_that_are_not_there(given, message):
    schema = from_arrow_schema(pa.schema([("image", IMAGE), ("text", pa.string())]))
    with pytest.raises(adapters.ColumnError, match=message):
        adapters.choose(schema, Source(repo="user/x", **given))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": pa.string(), "caption": pa.string()}, "the column image is text; images and videos are read as byt"),
        ({"images": pa.list_(pa.string()), "texts": pa.list_(TURN)}, "the column images is text"),
        ({"image": pa.int64(), "caption": pa.string()}, "the column image is bigint, which holds no bytes"),
        ({"image": IMAGE, "Image": IMAGE, "text": pa.string()}, "image, Image differ in case alone"),
        (
            {"image": IMAGE, "caption": pa.int64()},
            "(?s)no adapter knows the columns .*caption bigint.*\n  vqa: image or",
        ),
        ({"messages": pa.string(), "images": pa.list_(IMAGE)}, "no adapter knows"),
    ],
)
def test_columns_of_another_type(columns, message):
    schema = from_arrow_schema(pa.schema(list(columns.items())))
    with pytest.raises(adapters.ColumnError, match=message):
        adapters.choose(schema, Source(repo="user/x"))


def test_equal_samples_have_equal_ids(spark):
    """Whatever their paths; what is no sample has an id of its own."""
    schema = pa.schema([("image", IMAGE), ("caption", pa.string())])
    renamed = image("1") | {"path": "other"}
    rows = [
        {"image": image("1"), "caption": "a"},
        {"image": renamed, "caption": "a"},
        {"image": image("1"), "caption": "b"},
        {"image": image("2"), "caption": "a"},
        {"image": image("1"), "caption": None},
        {"image": image("1"), "caption": None},
    ]
    ids = [row.sample_id for row in samples(spark, pa.Table.from_pylist(rows, schema))]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 5
