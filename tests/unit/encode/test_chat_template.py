"""Trained spans and typed control tokens, with chat templates of several kinds on the demo's processor."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoProcessor

from packing_udfs.contract import IGNORE_INDEX
from packing_udfs.encode.chat_template import ChatTemplate, Controls, TemplateError
from packing_udfs.encode.encoder import EncodedSample, Encoder

DEMO = Path(__file__).parents[3] / "jobs" / "demo" / "processor"
END = "<end_of_utterance>"

BODY = (
    "{% for tool in tools or [] %}{{ '[' + (tool | tojson) + ']' }}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}<image>{% else %}TEXT{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
)
PLAIN = BODY.replace("TEXT", "{{ p['text'] }}")
TRIMMED = BODY.replace("TEXT", "{{ p['text'] | trim }}")
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% for p in m['content'] %}{% if p['type'] == 'image' %}<image>"
    "{% elif m['role'] != 'assistant' %}{{ p['text'] }}{% endif %}{% endfor %}{% if m['role'] == 'assistant' %}"
    "{% generation %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}<end_of_utterance>{% endgeneration %}"
    "{% else %}<end_of_utterance>{% endif %}{{ '\n' }}{% endfor %}"
)


def processor_with(template: str):
    processor = AutoProcessor.from_pretrained(DEMO)
    processor.chat_template = template
    return processor


@pytest.fixture(scope="module")
def encoders() -> dict[str, Encoder]:
    return {name: Encoder(processor_with(t)) for name, t in (("plain", PLAIN), ("marked", MARKED), ("trim", TRIMMED))}


def message(role: str, *texts: str) -> dict:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}


def encode(encoder: Encoder, messages: list[dict], **kwargs):
    (result,) = encoder.encode([messages], [[]], **kwargs)
    return result


def trained(encoder: Encoder, result: EncodedSample) -> str:
    return encoder.tokenizer.decode(result.labels[result.labels != IGNORE_INDEX])


ANSWER = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", " ", "Hi", "  Hi\n", END, "<image>", "\ue0020\ue003", "user", "assistant"]),
).filter(lambda text: not text[:1].isspace() or text[0] == " ")  # a line break joins the one before it in one token


@settings(max_examples=150, deadline=None)
@given(turns=st.lists(st.tuples(ANSWER, ANSWER), min_size=1, max_size=4), system=st.booleans())
def test_proved_spans_are_those_that_generation_would_mark(encoders, turns, system):
    messages = [message("system", "Be brief.")] if system else []
    for question, answer in turns:
        messages += [message("user", question), message("assistant", answer)]
    marked, plain = encode(encoders["marked"], messages), encode(encoders["plain"], messages)
    assert plain.input_ids.tolist() == marked.input_ids.tolist()
    assert plain.labels.tolist() == marked.labels.tolist()
    assert trained(encoders["plain"], plain) == "".join(answer + END for _, answer in turns)


def test_a_template_that_trims(encoders):
    """Question and answer are the same words: the span is where the answer stands, not where its words are found."""
    messages = [
        message("user", "yes"),
        message("assistant", "  yes\n"),
        message("user", "?"),
        message("assistant", "no"),
    ]
    result = encode(encoders["trim"], messages)
    assert trained(encoders["trim"], result) == f"yes{END}no{END}"
    first = int(np.flatnonzero(result.labels != IGNORE_INDEX)[0])
    assert encoders["trim"].tokenizer.decode(result.input_ids[:first]).endswith("assistant\n")


def test_an_answer_in_several_parts_is_trained_as_one(encoders):
    result = encode(encoders["plain"], [message("user", "Hi"), message("assistant", "one ", "two")])
    assert trained(encoders["plain"], result) == f"one two{END}"
    assert np.diff(np.flatnonzero(result.labels != IGNORE_INDEX)).max() == 1


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (PLAIN.replace("<end_of_utterance>\n", "\n"), "no control token ends what the assistant says"),
        (PLAIN.replace("{{ p['text'] }}", "{{ p['text'] | upper }}"), "leaves out, repeats or reorders|changes what"),
        (PLAIN.replace("{{ p['text'] }}", "{{ p['text'][:3] }}"), "leaves out, repeats or reorders|changes what"),
        (PLAIN.replace("{{ p['text'] }}", "{{ p['text'] + p['text'] }}"), "leaves out, repeats or reorders"),
        (PLAIN.replace("{{ p['text'] }}", "{{ p['text'] | replace('s', 'z') }}"), "changes what the assistant says"),
        ("{% for m in messages %}{{ m['content'] + '<image>' }}{% endfor %}", "template_failed: TypeError"),
        ("{{ raise_exception('never') }}", "template_failed: TemplateError: never"),
        ("no words at all", "leaves out, repeats or reorders"),
        (PLAIN.replace("<image>", ""), "image_count: 0 image placeholders in the text for 1 images"),
    ],
)
def test_a_template_whose_spans_cannot_be_proved_is_refused_at_once(template, why):
    with pytest.raises(ValueError, match=why):
        Encoder(processor_with(template))


def test_a_processor_without_a_template_is_refused():
    processor = processor_with(None)
    processor.tokenizer.chat_template = None
    with pytest.raises(ValueError, match="has no chat template"):
        Encoder(processor)


@pytest.mark.parametrize("said", ["{{ p['text'] }}", "{{ p['text'] | trim }}"])
def test_what_a_template_adds_around_a_turn_is_not_trained(said):
    """A system prompt where there is none, and a control token before the last answer alone."""
    template = (
        "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nHelp.<end_of_utterance>\n{% endif %}"
        + PLAIN.replace("{{ p['text'] }}", "{% if loop.first and last %}<global-img>{% endif %}" + said)
    ).replace("{% for m in messages %}", "{% for m in messages %}{% set last = loop.last %}")
    encoder = Encoder(processor_with(template))
    result = encode(
        encoder, [message("user", "a"), message("assistant", "b "), message("user", "c"), message("assistant", "d")]
    )
    assert trained(encoder, result) == ("b" if "trim" in said else "b ") + f"{END}d{END}"
    text = encoder.tokenizer.decode(result.input_ids)
    assert text.startswith("<|im_start|>system\nHelp.")
    assert text.endswith(f"<|im_start|>assistant\n<global-img>d{END}\n")


def test_a_template_that_leaves_out_the_last_end_of_turn_is_refused():
    template = PLAIN.replace("<end_of_utterance>", "{% if not loop.last %}<end_of_utterance>{% endif %}")
    with pytest.raises(ValueError, match="no control token ends what the assistant says"):
        Encoder(processor_with(template))


def test_roles_and_keys_are_no_way_in(encoders):
    hostile = [message("user", "Hi") | {"role": "user<image>"}, message("assistant", "Hello")]
    result = encode(encoders["plain"], hostile, tools=[[{"<image>": "<image>"}]])
    assert encoders["plain"].processor.image_token_id not in result.input_ids
    assert encoders["plain"].tokenizer.decode(result.input_ids).count("<image>") == 3
    key = encode(encoders["plain"], [hostile[0] | {"<image>": 1}, hostile[1]])
    assert key == ("template_failed", "the chat template does not render <image>")


def test_tool_calls_need_a_template_that_marks_them(encoders):
    call = message("assistant", "") | {"tool_calls": [{"name": "look"}]}
    result = encode(encoders["plain"], [message("user", "Hi"), call])
    assert (result.reason, "tool_calls" in result.detail) == ("template_failed", True)


def test_tools_are_told_to_the_template_as_text(encoders):
    tools = [{"name": "look", "description": "looks at <image>"}]
    messages = [message("user", "Hi"), message("assistant", "Hello")]
    result = encode(encoders["plain"], messages, tools=[tools])
    text = encoders["plain"].tokenizer.decode(result.input_ids)
    assert text.startswith('[{"name": "look", "description": "looks at <image>"}]')
    assert encoders["plain"].processor.image_token_id not in result.input_ids
    assert len(encode(encoders["plain"], messages).input_ids) < len(result.input_ids)


def test_train_on_all():
    encoder = Encoder(processor_with(PLAIN), train_on="all")
    messages = [message("user", "Hi"), message("assistant", "Hello")]
    messages[0]["content"].insert(0, {"type": "image", "text": None})
    (result,) = encoder.encode([messages], [[(20, 160)]])
    image = encoder.expand((20, 160)).ids
    start = result.input_ids.tolist().index(image[0])
    expected = result.input_ids.copy()
    expected[0] = IGNORE_INDEX
    expected[start : start + len(image)] = IGNORE_INDEX
    assert result.labels.tolist() == expected.tolist()


def test_train_on_is_checked():
    with pytest.raises(ValueError, match="train_on: 'user' is neither"):
        Encoder(processor_with(PLAIN), train_on="user")


def test_typed_control_tokens_become_what_transformers_makes_of_them(encoders):
    """Its own option gives the ids (not the mask, and not with Idefics3's images) of a sanitised conversation."""
    processor = encoders["plain"].processor
    messages = [
        message("user", "a <image> b<|im_end|><row_1_col_1>", " c\n"),
        message("assistant", f"{END}{END} d <global-img>"),
    ]
    expected = processor.tokenizer.apply_chat_template(
        messages, chat_template=PLAIN, tokenize=True, sanitize_control_tokens=True, return_dict=True
    )["input_ids"]
    assert encode(encoders["plain"], messages).input_ids.tolist() == list(expected)


def test_an_added_token_that_is_not_special_is_text_too():
    processor = processor_with(PLAIN)
    processor.tokenizer.add_tokens(["<think>"])
    encoder = Encoder(processor)
    result = encode(encoder, [message("user", "<think>"), message("assistant", "a<think>b")])
    assert processor.tokenizer.convert_tokens_to_ids("<think>") not in result.input_ids
    assert trained(encoder, result) == f"a<think>b{END}"


def test_marks_never_nest():
    """Marked text holds marks and nothing private or control besides, whatever was typed."""
    controls = Controls(["<a>", "<ab>", "\n", " "])
    assert controls.texts == ["<a>", "<ab>", "\ue000", "\ue001", "\ue002", "\ue003"]
    assert controls.mark("x<ab>y<a>\n") == "x\ue0001\ue001y\ue0000\ue001\n"
    assert controls.mark("\ue0001\ue001") == "\ue0002\ue0011\ue0003\ue001"
    assert controls.mark({"a": ["<a>", None, 3], "b": None}) == {"a": ["\ue0000\ue001", None, 3]}


def test_render_gives_spans_in_characters():
    processor = processor_with(PLAIN)
    template = ChatTemplate(processor, Controls([END]), "assistant")
    rendered = template.render([message("user", "Hi"), message("assistant", "Hello")])
    assert rendered.text == f"<|im_start|>user\nHi{END}\n<|im_start|>assistant\nHello{END}\n"
    ((start, end),) = rendered.spans
    assert rendered.text[start:end] == f"Hello{END}"
    with pytest.raises(TemplateError, match="TypeError"):
        template.render([{"role": "user", "content": None}])


# What is not trained, and what a template leaves out


@pytest.mark.parametrize("name", ["plain", "marked", "trim"])
def test_a_message_that_is_not_to_be_trained(encoders, name):
    """It is in the text as before; only its labels go."""
    messages = [message("user", "Hi"), message("assistant", "one"), message("user", "?"), message("assistant", "two")]
    result = encode(encoders[name], messages)
    messages[1]["train"] = False
    masked = encode(encoders[name], messages)
    assert masked.input_ids.tolist() == result.input_ids.tolist()
    assert trained(encoders[name], result) == f"one{END}two{END}"
    assert trained(encoders[name], masked) == f"two{END}"


def test_nothing_trained_is_said(encoders):
    result = encode(encoders["plain"], [message("user", "Hi"), message("assistant", "one") | {"train": False}])
    assert result.reason == "no_assistant_tokens"


def test_a_message_cannot_be_masked_where_everything_is_trained():
    encoder = Encoder(processor_with(PLAIN), "all")
    result = encode(encoder, [message("user", "Hi"), message("assistant", "one") | {"train": False}])
    assert result.reason == "template_failed"
    assert "train: false" in result.detail


REASONING = MARKED.replace(
    "{% generation %}", "{% generation %}{% if m['reasoning_content'] %}({{ m['reasoning_content'] }}){% endif %}"
)


def test_reasoning_is_trained_where_the_template_renders_it(encoders):
    messages = [message("user", "Hi"), message("assistant", "yes") | {"reasoning_content": "hm"}]
    encoder = Encoder(processor_with(REASONING))
    assert trained(encoder, encode(encoder, messages)) == f"(hm)yes{END}"
    refused = encode(encoders["marked"], messages)
    assert refused == ("template_failed", "the chat template does not render reasoning_content")


def test_tools_that_a_template_leaves_out_are_refused(encoders):
    refused = encode(encoders["marked"], [message("user", "Hi"), message("assistant", "yes")], tools=[[{"name": "x"}]])
    assert refused == ("template_failed", "the chat template does not render tools")


def test_under_all_nothing_can_be_masked():
    encoder = Encoder(processor_with(PLAIN), train_on="all")
    result = encode(encoder, [message("user", "Hi") | {"train": False}, message("assistant", "Hello")])
    assert result.reason == "template_failed"
    assert "train: false" in result.detail
