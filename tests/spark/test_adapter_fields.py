"""What a row has besides questions, answers and images: used, named, or a reason not to train it."""

import json

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from jobs import adapters
from packing_udfs.config import Source
from tests.spark.test_adapters import (
    IMAGE,
    IMG,
    OPENAI,
    PART,
    PARTS,
    SHAREGPT,
    finevision,
    image,
    images,
    messages_table,
    said,
    samples,
)


def chat_table(rows: list[dict], images: bool = False, **fields: pa.DataType) -> pa.Table:
    """Rows of `messages` whose turns have more fields than role and content."""
    turn = pa.struct([("role", pa.string()), ("content", pa.string()), *fields.items()])
    columns = [("messages", pa.list_(turn))] + ([("images", pa.list_(IMAGE))] if images else [])
    return pa.Table.from_pylist(rows, pa.schema(columns))


def question(text: str = "q") -> dict:
    return {"role": "user", "content": text}


def extras(row) -> list[dict | None]:
    return [m.extra and json.loads(m.extra) for m in row.messages]


# Answers without words

BLANKS = ["", " ", "\n\t "]


@pytest.mark.parametrize("blank", BLANKS)
def test_an_answer_without_words_is_none(spark, blank):
    turns = {"messages": [question(), {"role": "assistant", "content": blank}]}
    said = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": blank}]}
    parts = [{"role": "user", "content": [{"type": "text", "text": "q"}]},
             {"role": "assistant", "content": [{"type": "text", "text": blank}]}]  # fmt: skip
    pair = pa.schema([("image", IMAGE), ("question", pa.string()), ("answer", pa.string())])
    caption = pa.schema([("image", IMAGE), ("caption", pa.string())])
    for table in (
        messages_table([turns], OPENAI),
        pa.Table.from_pylist([said], pa.schema([("conversations", SHAREGPT)])),
        messages_table([{"messages": parts}], PARTS),
        finevision([{"images": [image("1")], "texts": [{"user": "q", "assistant": blank}]}]),
        pa.Table.from_pylist([{"image": image("1"), "question": "q", "answer": blank}], pair),
        pa.Table.from_pylist([{"image": image("1"), "caption": blank}], caption),
    ):
        (found,) = samples(spark, table)
        assert found.reason == "texts_missing", table.schema


def test_one_of_several_answers_without_words_is_enough(spark):
    turns = [question(), {"role": "assistant", "content": "a"}, question(), {"role": "assistant", "content": " "}]
    (found,) = samples(spark, messages_table([{"messages": turns}], OPENAI))
    assert found.reason == "texts_missing"


# Roles


def test_an_unknown_role_is_named(spark):
    turns = [[{"role": name, "content": "x"}, question()] for name in ("moderator", "Tool", "developer")]
    found = samples(spark, messages_table([{"messages": chat} for chat in turns], OPENAI))
    assert [row.reason for row in found] == ["role_unknown: moderator", None, None]
    assert found[1].messages[0].role == "tool"


# Markers in the commonest local form: role, content and images

MARKED = {
    "<image>\nWhat is it?": (1, [IMG, "What is it?"]),
    "Is <image> like <image>?": (2, ["Is ", IMG, " like ", IMG, "?"]),
    "<|im_end|> <image>": (1, ["<|im_end|> ", IMG]),
    "What is it?": (2, [IMG, IMG, "What is it?"]),
}


def test_markers_are_placeholders_where_they_stand(spark):
    rows = [
        {"images": [image(str(i)) for i in range(num)], "messages": [question(text)]}
        for text, (num, _) in MARKED.items()
    ]
    found = samples(spark, messages_table(rows, OPENAI))
    assert [said(row) for row in found] == [[("user", *parts)] for _, parts in MARKED.values()]


def test_markers_of_another_number_stay_placeholders_so_that_they_are_counted(spark):
    """The encoder finds one placeholder for two images, and the row is quarantined as image_count."""
    rows = [{"images": [image("1"), image("2")], "messages": [question("<image>?")]}]
    (found,) = samples(spark, messages_table(rows, OPENAI))
    assert (said(found), images(found)) == ([("user", IMG, "?")], ["1", "2"])


def test_the_index_of_a_part_chooses_its_image(spark):
    def shown(*indices) -> list[dict]:
        return [{"role": "user", "content": [{"type": "image", "text": None, "index": i} for i in indices]}]

    two = [image("1"), image("2")]
    rows = [
        {"images": two, "messages": shown(*indices)} for indices in ((1, 0), (None, None), (0, 1, 0), (0, 0), (5, 0))
    ]
    found = samples(spark, messages_table(rows, PARTS))
    assert PART.field("index").type == pa.int64()
    assert [images(row) for row in found[:3]] == [["2", "1"], ["1", "2"], ["1", "2", "1"]]
    assert [row.reason for row in found[:4]] == [None] * 3 + [
        "image_count: the parts' `index` does not name each image"
    ]
    assert found[4].images[0] is None  # there is no sixth image: image_missing


@pytest.mark.parametrize("nested", [True, False])
def test_images_in_data_uris_are_read_and_others_are_named(spark, nested):
    kind = pa.struct([("url", pa.string())]) if nested else pa.string()
    one = pa.struct([("type", pa.string()), ("text", pa.string()), ("image_url", kind)])
    turn = pa.struct([("role", pa.string()), ("content", pa.list_(one))])

    def shown(url: str) -> dict:
        parts = [{"type": "image_url", "image_url": {"url": url} if nested else url}, {"type": "text", "text": "?"}]
        return {"messages": [{"role": "user", "content": parts}]}

    urls = ("data:image/png;base64,MQ==", "https://x.y/z.png", "data:image/png;base64,***")
    found = samples(spark, pa.Table.from_pylist(list(map(shown, urls)), pa.schema([("messages", pa.list_(turn))])))
    assert (said(found[0]), images(found[0])) == ([("user", IMG, "?")], ["1"])
    assert found[1].reason == "field_unsupported: image_url https://x.y/z.png is not fetched"
    assert found[2].images[0].bytes is None  # image_missing


# Calls of tools, reasoning, and what is not to be trained

CALL = pa.struct([("id", pa.string()), ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())]))])


def test_what_the_template_renders_goes_with_the_message(spark):
    call = {"id": None, "function": {"name": "look", "arguments": '{"at": "é"}'}}
    turns = [
        question(),
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "content": "a cat", "tool_calls": []},
        {"role": "assistant", "content": "a cat", "reasoning_content": " "},
    ]
    table = chat_table([{"messages": turns}], tool_calls=pa.list_(CALL), reasoning_content=pa.string())
    (found,) = samples(spark, table)
    told = {"tool_calls": [{"function": call["function"]}], "reasoning_content": "hm"}
    assert extras(found) == [None, told, None, None]
    assert said(found) == [("user", "q"), ("assistant",), ("tool", "a cat"), ("assistant", "a cat")]


def test_calls_that_are_text_stay_json(spark):
    turns = [question(), {"role": "assistant", "content": None, "function_call": '{"name": "look"}'}]
    (found,) = samples(spark, chat_table([{"messages": turns}], function_call=pa.string()))
    assert extras(found) == [None, {"function_call": '{"name": "look"}'}]


def test_weight_0_and_train_false_are_told(spark):
    turns = [{"role": "assistant", "content": "a", "weight": w, "train": t}
             for w, t in ((0, None), (1, None), (None, False), (None, True), (None, None), (1, False))]  # fmt: skip
    rows = [{"messages": [question(), *turns]}, {"messages": [question(), {**turns[0], "weight": 0.5}]}]
    found = samples(spark, chat_table(rows, weight=pa.float64(), train=pa.bool_()))
    untrained = {"train": False}
    assert extras(found[0]) == [None, untrained, None, untrained, None, None, untrained]
    assert found[1].reason == "field_unsupported: weight 0.5, where 0 and 1 can be trained"


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int64(), pa.float32()])
@pytest.mark.parametrize("name", ["train", "training", "trainable", "loss"])
def test_other_names_of_what_is_not_trained(spark, name, kind):
    turns = [{"role": "assistant", "content": "a", name: pa.scalar(value).cast(kind).as_py()} for value in (0, 1)]
    (found,) = samples(spark, chat_table([{"messages": [question(), *turns]}], **{name: kind}))
    assert extras(found) == [None, {"train": False}, None]


def test_what_says_whether_a_turn_is_trained_is_no_text():
    with pytest.raises(adapters.ColumnError, match=r"messages\.train is string, and says whether a turn is trained: "):
        unused(one_row(messages=pa.list_(pa.struct([*OPENAI.value_type, ("train", pa.string())]))))


def test_names_and_thoughts_go_to_the_template(spark):
    turns = [question() | {"name": "bob"}, {"role": "assistant", "content": "a", "thinking": "hm"},
             {"role": "tool", "content": "r", "tool_call_id": "7"}]  # fmt: skip
    table = chat_table([{"messages": turns}], name=pa.string(), thinking=pa.string(), tool_call_id=pa.string())
    (found,) = samples(spark, table)
    assert extras(found) == [{"name": "bob"}, {"thinking": "hm"}, {"tool_call_id": "7"}]


def test_images_in_two_places_stop_the_row(spark):
    one = pa.struct([("type", pa.string()), ("text", pa.string()), ("image", IMAGE)])
    schema = pa.schema([
        ("images", pa.list_(IMAGE)),
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.list_(one))]))),
    ])  # fmt: skip
    said = [{"role": "user", "content": [{"type": "image", "image": image("1")}]}]
    rows = [{"images": [image("2")], "messages": said}, {"images": [], "messages": said}]
    both, alone = samples(spark, pa.Table.from_pylist(rows, schema))
    assert both.reason == "image_count: images stand in the messages and in a column of their own"
    assert (alone.reason, images(alone)) == (None, [])  # one placeholder and no image: image_count


def test_markers_in_a_question_are_placeholders_where_they_stand(spark):
    schema = pa.schema([("image", IMAGE), ("question", pa.string()), ("answer", pa.string())])
    rows = [
        {"image": image("1"), "question": q, "answer": "a"} for q in ("What is <image>?", "<image>\nWhat?", "What?")
    ]
    found = samples(spark, pa.Table.from_pylist(rows, schema))
    assert [said(row)[0] for row in found] == [
        ("user", "What is ", IMG, "?"), ("user", IMG, "What?"), ("user", IMG, "What?")
    ]  # fmt: skip


def test_a_system_column_is_the_first_message(spark):
    schema = pa.schema([("system", pa.string()), ("messages", OPENAI)])
    own = [{"role": "system", "content": "mine"}, question()]
    rows = [
        {"system": s, "messages": m}
        for s, m in (("be kind", [question()]), (" ", [question()]), (None, own), ("be kind", own))
    ]
    found = samples(spark, pa.Table.from_pylist(rows, schema))
    assert said(found[0]) == [("system", "be kind"), ("user", "q")]
    assert said(found[1]) == [("user", "q")]
    assert said(found[2]) == [("system", "mine"), ("user", "q")]
    assert found[3].reason == "field_unsupported: system, beside a message of the system"


def test_tools_are_json(spark):
    tool = pa.struct([("name", pa.string()), ("strict", pa.bool_())])
    rows = [
        {"tools": [{"name": "look", "strict": None}], "messages": [question()]},
        {"tools": [], "messages": [question()]},
    ]
    found = samples(spark, pa.Table.from_pylist(rows, pa.schema([("tools", pa.list_(tool)), ("messages", OPENAI)])))
    assert [row.tools for row in found] == ['[{"name":"look"}]', None]
    rows = [{"tools": '[{"name": "look"}]', "messages": [question()]}]
    (found,) = samples(spark, pa.Table.from_pylist(rows, pa.schema([("tools", pa.string()), ("messages", OPENAI)])))
    assert found.tools == '[{"name": "look"}]'


# What nobody uses


def unused(table: pa.Table, **given) -> tuple[str, ...]:
    schema, source = from_arrow_schema(table.schema), Source(repo="user/x", **given)
    return adapters.unused_fields(schema, adapters.choose(schema, source), source)


def one_row(**kinds: pa.DataType) -> pa.Table:
    return pa.schema(list(kinds.items())).empty_table()


def test_columns_and_fields_that_nobody_uses_are_named():
    turn = pa.struct([("role", pa.string()), ("content", pa.string()), ("id", pa.string())])
    table = one_row(messages=pa.list_(turn), images=pa.list_(IMAGE), url=pa.string(), __key__=pa.string())
    assert unused(table) == ("messages.id", "url")
    assert unused(table, ignore=["url"]) == ("messages.id",)
    nested = one_row(jpg=pa.binary(), json=pa.struct([("text", pa.string()), ("score", pa.float64())]))
    assert unused(nested, columns={"caption": "json.text"}) == ("json.score",)
    numbers = one_row(images=pa.list_(IMAGE), messages=OPENAI, num_images=pa.int64(), image_id=pa.string())
    assert unused(numbers) == ("num_images", "image_id")
    part = pa.struct([("type", pa.string()), ("text", pa.string()), ("image_url", pa.struct([("url", pa.string()),
                      ("detail", pa.string())])), ("cache", pa.string())])  # fmt: skip
    parts = one_row(messages=pa.list_(pa.struct([("role", pa.string()), ("content", pa.list_(part))])))
    assert unused(parts) == ("messages.content.image_url.detail", "messages.content.cache")


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        (
            {"imgs": pa.list_(IMAGE)},
            {},
            r"the column imgs holds images that would not be shown: `columns: \{images: imgs\}`",
        ),
        ({"images": pa.list_(IMAGE), "mask": IMAGE}, {}, "the column mask holds an image that would not be shown"),
        ({"imgs": pa.list_(pa.binary())}, {}, "the column imgs holds images that would not be shown"),
        (
            {"image_path": pa.string()},
            {},
            "the column image_path names images or videos, which are read as bytes",
        ),
        (
            {"system_prompt": pa.string()},
            {},
            r"the column system_prompt changes what is said, .*`columns: \{system: ",
        ),
        ({"functions": pa.string()}, {"adapter": "text"}, "the column functions changes what is said, and the adapter"),
        (
            {"meta": pa.struct([("shown", pa.list_(IMAGE))])},
            {},
            "the column meta holds an image that would not be",
        ),
        ({"img": pa.map_(pa.string(), pa.binary())}, {}, "the column img holds an image that would not be shown"),
        ({"loss_mask": pa.int64()}, {}, "the field loss_mask says what is trained, in a way that is not known"),
        ({"tools": pa.int64()}, {}, "the column tools is bigint, and tools are a list of JSON schemas"),
        ({"conversations": pa.string()}, {}, "the column conversations would not be trained, which is string"),
        ({"url": pa.string()}, {"ignore": ["uri"]}, "'uri' is no unused column; these are url"),
    ],
)
def test_what_must_not_be_left_out(columns, given, message):
    with pytest.raises(adapters.ColumnError, match=message):
        unused(one_row(messages=OPENAI, **columns), **given)


def test_what_must_not_be_left_out_may_be_ignored():
    assert unused(one_row(messages=OPENAI, imgs=pa.list_(IMAGE)), ignore=["imgs"]) == ()
    assert unused(one_row(messages=OPENAI, imgs=pa.list_(IMAGE)), columns={"images": "imgs"}) == ()
    assert unused(one_row(messages=OPENAI, images=pa.list_(IMAGE)), adapter="text") == ("images",)


def test_a_system_column_without_a_conversation_is_refused():
    table = one_row(image=IMAGE, question=pa.string(), answer=pa.string(), system=pa.string())
    with pytest.raises(adapters.ColumnError, match="the column system changes what is said"):
        unused(table)


def test_an_index_of_a_part_is_a_whole_number():
    part = pa.struct([("type", pa.string()), ("text", pa.string()), ("index", pa.float64())])
    turn = pa.struct([("role", pa.string()), ("content", pa.list_(part))])
    with pytest.raises(adapters.ColumnError, match=r"messages\.content\.index is double, and numbers images"):
        unused(one_row(messages=pa.list_(turn), images=pa.list_(IMAGE)))


def test_words_about_a_call_are_no_call(spark):
    turns = [question(), {"role": "assistant", "content": "", "name": "my_caller", "thinking": 'a "tool_calls": no'}]
    (found,) = samples(spark, chat_table([{"messages": turns}], name=pa.string(), thinking=pa.string()))
    assert found.reason == "texts_missing"
