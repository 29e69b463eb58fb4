"""Conversations to text through a processor's chat template, with the spans that are trained.

A template with `{% generation %}` marks itself what the assistant says. Most published templates do not. With those a
conversation is rendered twice, the second time with a mark in place of each text of the assistant:

    <user>Hi<end>\\n<bot>Hello<end>\\n      ─▶  text = static[0] + said[0] + static[1]
    <user>Hi<end>\\n<bot>\\ue0020\\ue003<end>\\n  ─▶  static = ["<user>Hi<end>\\n<bot>", "<end>\\n"]

The spans are proved: with the texts in place of the marks, whole or trimmed, the second rendering must be exactly the
first. Each span includes the control token that must follow, the end of the turn. A sample without proof is refused,
and an `Encoder` refuses a template that never gives one. The cost is a second rendering. Rejected: rendering longer and
longer prefixes (templates treat the last turn differently), and searching the text for the answer (the same words may
stand elsewhere).

A message with `train: false` is rendered and not trained: of the trained spans those of the assistant's k-th message
belong to it. Tools, and what a message has besides its content (calls of tools, reasoning), must change the rendering;
a template that leaves them out would train something else.

Control tokens that a person typed (`<image>`, `<|im_end|>`) are ordinary text. Before rendering, each becomes a private
mark "\\ue000<number>\\ue001", which `Controls` knows.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, count
from typing import Any, NamedTuple

import jinja2

__all__ = ["MARK_START", "ChatTemplate", "Controls", "Rendered", "Span", "TemplateError"]

Span = tuple[int, int]  # characters [start, end)

MARK_START = "\ue000"
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_PRIVATE = (MARK_START, "\ue001", "\ue002", "\ue003")
_SAID = re.compile("\ue002(\\d+)\ue003")
_TRIMS = (str, str.strip, str.lstrip, str.rstrip)


class TemplateError(ValueError):
    """The chat template refuses a conversation, or the trained spans of it cannot be proved."""


class Controls:
    """Replaces control tokens in text that people wrote by marks that no template or tokenizer takes for control."""

    def __init__(self, added_tokens: Sequence[str]):
        """`added_tokens`: the tokenizer's added tokens. Those of whitespace alone are ordinary text."""
        self.texts = [*(text for text in added_tokens if not text.isspace()), *_PRIVATE]
        self.marks = [f"{MARK_START}{i}\ue001" for i in range(len(self.texts))]
        self._mark_of = dict(zip(self.texts, self.marks, strict=True))
        longest_first = sorted(self.texts, key=lambda text: (-len(text), text))
        self.pattern = re.compile("|".join(map(re.escape, longest_first)))

    def mark(self, value: Any) -> Any:
        """`value` with every control token in it marked. It may be a str, or lists and dicts of them."""
        if isinstance(value, str):
            return self.pattern.sub(lambda match: self._mark_of[match[0]], value)
        if isinstance(value, dict):
            return {self.mark(key): self.mark(part) for key, part in value.items() if part is not None}
        return [self.mark(part) for part in value] if isinstance(value, list | tuple) else value


class Rendered(NamedTuple):
    """A conversation as text with marks, and its trained spans, disjoint and in order."""

    text: str
    spans: list[Span]


# Fields of messages that a template may ignore: what is said is the same without them.
_MAY_BE_LEFT_OUT = {"role", "content", "name", "tool_call_id"}


class ChatTemplate:
    """The chat template of a processor. Raises ValueError when the processor has none."""

    def __init__(self, processor, controls: Controls, train_on: str):
        """`train_on`: "assistant" trains what the assistant says and its ends of turns, "all" trains everything."""
        if train_on not in ("assistant", "all"):
            raise ValueError(f"train_on: {train_on!r} is neither 'assistant' nor 'all'")
        template = processor.chat_template or getattr(processor.tokenizer, "chat_template", None)
        if isinstance(template, dict):
            template = template.get("default")
        if not template:
            raise ValueError("processor: it has no chat template; add chat_template.jinja to its directory")
        self.source: str = template
        self.trains_all = train_on == "all"
        self.marks_generation = not self.trains_all and _GENERATION.search(template) is not None
        self._special = processor.tokenizer.special_tokens_map
        self._controls = controls

    def render(self, messages: list[dict], tools: list[dict] | None = None) -> Rendered:
        """Render one conversation. Raises TemplateError when the template refuses it or the spans are not proved."""
        trains = [message.get("train") is not False for message in messages if message["role"] == "assistant"]
        try:
            chat = [self._marked(message) for message in messages]
            tools = self._controls.mark(tools)
            rendered = self._render(chat, tools)
            self._check_rendered(rendered.text, chat, tools)
            if self.trains_all:
                spans = [(0, len(rendered.text))]
            elif self.marks_generation:
                spans = rendered.spans
            else:
                hidden, said = _hide_said(chat)
                spans = self._prove_spans(rendered.text, self._render(hidden, tools).text, said)
        except TemplateError:
            raise
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError, ValueError) as error:
            raise TemplateError(f"{type(error).__name__}: {error}") from error
        is_masked = any(message.get("train") is False for message in messages)
        if all(trains) and not (self.trains_all and is_masked):
            return Rendered(rendered.text, spans)
        if self.trains_all or len(spans) != len(trains):
            raise TemplateError(
                f"a message has train: false, and {len(spans)} trained spans do not tell {len(trains)} messages of the "
                "assistant apart"
            )
        return Rendered(rendered.text, [span for span, is_trained in zip(spans, trains, strict=True) if is_trained])

    def _check_rendered(self, text: str, chat: list[dict], tools: list | None) -> None:
        """Raises TemplateError for tools or a field of a message without which the text would be the same."""
        for i, message in enumerate(chat):
            for name in sorted(message.keys() - _MAY_BE_LEFT_OUT):
                if self._text_of([*chat[:i], _less(message, name), *chat[i + 1 :]], tools) == text:
                    raise TemplateError(f"the chat template does not render {name}")
        if tools and self._text_of(chat, None) == text:
            raise TemplateError("the chat template does not render tools")

    def _text_of(self, chat: list[dict], tools: list | None) -> str | None:
        """The rendering, None where the template refuses it."""
        try:
            return self._render(chat, tools).text
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError):
            return None

    def _marked(self, message: dict) -> dict:
        """The message for the template: control tokens marked, images without bytes, no value that is None."""
        content, mark = message["content"], self._controls.mark
        if isinstance(content, str):
            content = mark(content)
        else:
            content = [
                {"type": "text", "text": mark(part["text"] or "")} if part["type"] == "text" else {"type": part["type"]}
                for part in content
            ]
        others = {
            key: mark(value)
            for key, value in message.items()
            if key not in ("role", "content", "train") and value is not None
        }
        return {"role": mark(message["role"]), "content": content, **others}

    def _render(self, chat: list[dict], tools: list | None) -> Rendered:
        # Not at the top: importing this module must not import transformers (`jobs.shards.worker_memory`).
        from transformers.utils.chat_template_utils import render_jinja_template

        made: Any = render_jinja_template(  # which says it returns a str, and returns texts and spans
            [chat],
            tools=tools,
            chat_template=self.source,
            return_assistant_tokens_mask=self.marks_generation,
            **self._special,
        )
        (text,), spans = made
        return Rendered(text, list(map(tuple, spans[0])) if self.marks_generation else [])

    def _prove_spans(self, text: str, probe: str, said: list[list[str]]) -> list[Span]:
        """The spans of the assistant's turns in `text`. `probe` is the same with marks in their place.

        `said`: the texts of each of the assistant's messages, in order.
        """
        static, spoken = _split_at_said(text, probe, [part for parts in said for part in parts])
        # The end of each piece in `text`: static[0], spoken[0], static[1], …
        pieces = [piece for pair in zip(static, [*spoken, ""], strict=True) for piece in pair]
        ends = list(accumulate(map(len, pieces)))
        spans, first = [], 0
        for parts in said:
            last = first + len(parts) - 1
            spans.append((ends[2 * first], ends[2 * last + 1] + len(self._end_of_turn(static[last + 1]))))
            first = last + 1
        return spans

    def _end_of_turn(self, following: str) -> str:
        match = self._controls.pattern.match(following)
        if match is None or match[0] in _PRIVATE:
            raise TemplateError(
                f"no control token ends what the assistant says ({following[:20]!r} follows), so a model would not "
                "learn to stop; put {% generation %} … {% endgeneration %} around it and its end in the template"
            )
        return match[0]


def _split_at_said(text: str, probe: str, said: list[str]) -> tuple[list[str], list[str]]:
    """What the template writes around the texts that the assistant says, and these texts as it writes them.

    Raises TemplateError unless both together are `text`.
    """
    static = _SAID.split(probe)
    if [int(number) for number in static[1::2]] != list(range(len(said))):
        raise TemplateError("the chat template leaves out, repeats or reorders what the assistant says")
    static = static[::2]
    for trim in _TRIMS:
        spoken = [trim(part) for part in said]
        if "".join(map(str.__add__, static, [*spoken, ""])) == text:
            return static, spoken
    raise TemplateError(
        "the chat template changes what the assistant says, so its words cannot be told from the rest; "
        "put {% generation %} … {% endgeneration %} around them in the template"
    )


def _hide_said(chat: list[dict]) -> tuple[list[dict], list[list[str]]]:
    """The conversation with a numbered mark in place of each text of the assistant, and those texts by message."""
    hidden, said = [], []
    marks = (f"\ue002{i}\ue003" for i in count())
    for message in chat:
        if message["role"] == "assistant":
            others = sorted(set(message) - {"role", "content"})
            if others:
                raise TemplateError(
                    "the chat template has no {% generation %}, so only text can be trained, and a message has "
                    f"{', '.join(others)}"
                )
            message, texts = _hide_texts(message, marks)
            if texts:
                said.append(texts)
        hidden.append(message)
    return hidden, said


def _hide_texts(message: dict, marks: Iterator[str]) -> tuple[dict, list[str]]:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": next(marks)}, [content]
    parts = [{**part, "text": next(marks)} if part["type"] == "text" else part for part in content]
    return {**message, "content": parts}, [part["text"] for part in content if part["type"] == "text"]


def _less(message: dict, name: str) -> dict:
    """A message without one of its fields."""
    return {key: value for key, value in message.items() if key != name}
