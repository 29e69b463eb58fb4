"""Conversations to text through a processor's chat template, with the spans that are trained.

A template that marks the assistant's words with `{% generation %}` says itself what is trained. Most published ones
do not. For those the conversation is rendered twice, the second time with a mark in place of each text of the
assistant:

    <user>Hi<end>\\n<bot>Hello<end>\\n      ─▶  text = static[0] + said[0] + static[1]
    <user>Hi<end>\\n<bot>\\ue0020\\ue003<end>\\n  ─▶  static = ["<user>Hi<end>\\n<bot>", "<end>\\n"]

Only when putting the texts back (whole, or trimmed as the template trims them) gives the first rendering to the last
character are the spans taken; each reaches over the control token that must follow, the end of the turn. A sample
where this fails is refused, and an `Encoder` refuses a template where it fails at all. The price is a second
rendering. Rejected: rendering ever longer prefixes (templates treat the last turn apart), and searching the text for
the answer (it may stand elsewhere as well).

Control tokens that someone typed (`<image>`, `<|im_end|>`) are text. Before rendering each becomes a private mark
"\\ue000<number>\\ue001"; `Controls` knows what it stands for.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jinja2

Span = tuple[int, int]  # characters [start, end)

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_PRIVATE = ("\ue000", "\ue001", "\ue002", "\ue003")
_SAID = re.compile("\ue002(\\d+)\ue003")
_TRIMS: tuple[Callable[[str], str], ...] = (str, str.strip, str.lstrip, str.rstrip)


class TemplateError(ValueError):
    """A conversation that the chat template refuses, or whose trained spans cannot be proved."""


class Controls:
    """Control tokens in text that people wrote, swapped for marks which no template or tokenizer takes for control."""

    def __init__(self, added_tokens: Sequence[str]):
        """`added_tokens`: contents of the tokenizer's added tokens; those of whitespace alone are ordinary text."""
        self.texts = [*(text for text in added_tokens if not text.isspace()), *_PRIVATE]
        self.marks = [f"\ue000{i}\ue001" for i in range(len(self.texts))]
        self._mark_of = dict(zip(self.texts, self.marks, strict=True))
        longest_first = sorted(self.texts, key=lambda text: (-len(text), text))
        self.pattern = re.compile("|".join(map(re.escape, longest_first)))

    def mark(self, value):
        """`value` (str, or lists and dicts of them) with every control token in it marked."""
        if isinstance(value, str):
            return self.pattern.sub(lambda match: self._mark_of[match[0]], value)
        if isinstance(value, dict):
            return {self.mark(key): self.mark(part) for key, part in value.items() if part is not None}
        return [self.mark(part) for part in value] if isinstance(value, list | tuple) else value


class Rendered(NamedTuple):
    """A conversation as text, marks in it, and the spans of it that are trained."""

    text: str
    spans: list[Span]


class ChatTemplate:
    """The chat template of a processor. Raises ValueError when it has none."""

    def __init__(self, processor, controls: Controls, train_on: str):
        """`train_on`: "assistant" trains what the assistant says and its ends of turns, "all" everything."""
        if train_on not in ("assistant", "all"):
            raise ValueError(f"train_on: {train_on!r} is neither 'assistant' nor 'all'")
        template = processor.chat_template or getattr(processor.tokenizer, "chat_template", None)
        if isinstance(template, dict):
            template = template.get("default")
        if not template:
            raise ValueError("processor: it has no chat template; add chat_template.jinja to its directory")
        self.source = template
        self._special = processor.tokenizer.special_tokens_map
        self._controls = controls
        self._trains_all = train_on == "all"
        self.marks_generation = _GENERATION.search(template) is not None

    def render(self, messages: list[dict], tools: list[dict] | None = None) -> Rendered:
        """Render one conversation. Raises TemplateError when the template refuses it or the spans are in doubt."""
        try:
            chat = [self._marked(message) for message in messages]
            tools = self._controls.mark(tools)
            if self._trains_all:
                text, _ = self._render(chat, tools, spans=False)
                return Rendered(text, [(0, len(text))])
            if self.marks_generation:
                return Rendered(*self._render(chat, tools, spans=True))
            text, _ = self._render(chat, tools, spans=False)
            hidden, said = _hide_said(chat)
            probe, _ = self._render(hidden, tools, spans=False)
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError) as error:
            raise TemplateError(f"{type(error).__name__}: {error}") from error
        return Rendered(text, self._prove_spans(text, probe, said))

    def _marked(self, message: dict) -> dict:
        """The message for the template: control tokens marked, images without bytes, nothing that is None."""
        content, mark = message["content"], self._controls.mark
        if not isinstance(content, str):
            content = [
                {"type": "text", "text": mark(part["text"] or "")} if part["type"] == "text" else {"type": part["type"]}
                for part in content
            ]
        others = {key: mark(message[key]) for key in message if key not in ("role", "content")}
        others = {key: value for key, value in others.items() if value is not None}
        return {
            "role": mark(message["role"]),
            "content": mark(content) if isinstance(content, str) else content,
            **others,
        }

    def _render(self, chat: list[dict], tools, *, spans: bool) -> tuple[str, list[Span]]:
        # Not at the top: importing this module must not import transformers (`jobs.shards.worker_memory`).
        from transformers.utils.chat_template_utils import render_jinja_template

        texts, indices = render_jinja_template(
            [chat],
            tools=tools,
            chat_template=self.source,
            return_assistant_tokens_mask=spans,
            **self._special,
        )
        return texts[0], [tuple(span) for span in indices[0]] if spans else []

    def _prove_spans(self, text: str, probe: str, said: list[list[str]]) -> list[Span]:
        """The spans of the assistant's turns in `text`; `probe` is the same with marks in their place.

        `said`: the texts of each of the assistant's messages, in order.
        """
        flat = [part for parts in said for part in parts]
        static = _SAID.split(probe)
        if [int(number) for number in static[1::2]] != list(range(len(flat))):
            raise TemplateError("the chat template leaves out, repeats or reorders what the assistant says")
        static = static[::2]
        for trim in _TRIMS:
            spoken = [trim(part) for part in flat]
            if "".join(map(str.__add__, static, [*spoken, ""])) == text:
                break
        else:
            raise TemplateError(
                "the chat template changes what the assistant says, so its words cannot be told from the rest; "
                "put {% generation %} … {% endgeneration %} around them in the template"
            )
        starts, position = [], 0
        for before, part in zip(static, [*spoken, ""], strict=True):
            starts.append(position + len(before))
            position = starts[-1] + len(part)
        spans, last = [], -1
        for parts in said:
            first, last = last + 1, last + len(parts)
            end = starts[last] + len(spoken[last])
            spans.append((starts[first], end + len(self._end_of_turn(static[last + 1]))))
        return spans

    def _end_of_turn(self, following: str) -> str:
        match = self._controls.pattern.match(following)
        if match is None or match[0] in _PRIVATE:
            raise TemplateError(
                f"no control token ends what the assistant says ({following[:20]!r} follows), so a model would not "
                "learn to stop; put {% generation %} … {% endgeneration %} around it and its end in the template"
            )
        return match[0]


def _hide_said(chat: list[dict]) -> tuple[list[dict], list[list[str]]]:
    """The conversation with a numbered mark in place of each text of the assistant, and those texts by message."""
    hidden, said, count = [], [], 0
    for message in chat:
        if message["role"] != "assistant":
            hidden.append(message)
            continue
        if set(message) != {"role", "content"}:
            raise TemplateError(
                f"the chat template has no {{% generation %}}, so nothing but text can be trained, and a message has "
                f"{', '.join(sorted(set(message) - {'role', 'content'}))}"
            )
        content, parts = message["content"], []
        if isinstance(content, str):
            parts, content = [content], f"\ue002{count}\ue003"
        else:
            marked = []
            for part in content:
                if part["type"] == "text":
                    marked.append({"type": "text", "text": f"\ue002{count + len(parts)}\ue003"})
                    parts.append(part["text"])
                else:
                    marked.append(part)
            content = marked
        hidden.append({**message, "content": content})
        count += len(parts)
        if parts:
            said.append(parts)
    return hidden, said
