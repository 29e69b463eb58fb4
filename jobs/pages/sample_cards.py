"""Samples as cards, drawn: images beside the conversation, and the tokens of both below."""

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from PIL import Image

from jobs.pages.drawing import DPI, GRID, INK, KIND_COLOURS, WIDTH
from packing_udfs.published.pictures import IMAGE, PROMPT, RESPONSE

__all__ = ["SampleCard", "card"]

LINES_A_TURN = 5
CHARS_A_LINE, CHARS_A_LONG_LINE = 100, 150  # beside images, and where there are none
_LINE, _HEADER, _STRIP = 0.17, 0.34, 0.34  # inches


@dataclass(frozen=True, kw_only=True)
class SampleCard:
    """A sample as people see it."""

    id: int
    source: str
    turns: Sequence[dict]  # {"role", "text"}
    num_turns_hidden: int
    images: Sequence[dict]  # {"jpeg", "height", "width"}; jpeg: small, None for an image that does not decode
    num_images: int
    num_tokens: int
    num_image_tokens: int
    num_label_tokens: int
    vision_cost: int
    tokens: Sequence[dict]  # {"kind", "text"}: the first tokens as text, each image as one piece
    num_tokens_hidden: int


def card(sample: SampleCard, vision_unit: str) -> Figure:
    """A sample as a picture."""
    width = CHARS_A_LINE if sample.images else CHARS_A_LONG_LINE
    turns = [(turn["role"], _wrapped(turn["text"], width)) for turn in sample.turns]
    num_lines = sum(1 + len(lines) for _, lines in turns)
    height = max(_LINE * num_lines, 2.0 if sample.images else 0) + _HEADER + _STRIP
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    title = (
        f"{sample.source}     {sample.num_tokens:,} tokens: {sample.num_image_tokens:,} of images, "
        f"{sample.num_label_tokens:,} trained     {sample.num_images} image{'' if sample.num_images == 1 else 's'}, "
        f"vision cost {sample.vision_cost} {vision_unit}"
    )
    figure.text(0.012, 1 - 0.2 / height, title, fontsize=9, color=INK, va="center")
    top, bottom = 1 - _HEADER / height, _STRIP / height
    _draw_images(figure, sample.images, top, bottom)
    _draw_turns(figure, turns, 0.335 if sample.images else 0.012, top, _LINE / height)
    _draw_kinds(figure, sample, 0.13 / height)
    return figure


def _wrapped(text: str, width: int) -> list[str]:
    """The first lines of a text. `$` is escaped because it starts a formula; □ replaces what the font lacks."""
    font = get_font(findfont("DejaVu Sans"))
    text = "".join(c if c.isspace() or font.get_char_index(ord(c)) else "□" for c in text)
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, width)]
    shown = [line.replace("$", r"\$") for line in lines[:LINES_A_TURN]]
    return [*shown[:-1], f"{shown[-1]} …"] if len(lines) > LINES_A_TURN else shown


def _draw_images(figure: Figure, images: Sequence[dict], top: float, bottom: float) -> None:
    width = 0.31 / max(1, len(images))
    for i, image in enumerate(images):
        axes = figure.add_axes((0.012 + i * width, bottom + 0.02, width * 0.95, top - bottom - 0.06))
        axes.set_axis_off()
        axes.set_anchor("NW")
        axes.set_title(f"{image['width']} × {image['height']}", fontsize=7.5, color=INK, loc="left", pad=2)
        if image["jpeg"] is not None:
            axes.imshow(np.asarray(Image.open(io.BytesIO(image["jpeg"])).convert("RGB")))


def _draw_turns(figure: Figure, turns: list[tuple[str, list[str]]], left: float, top: float, line: float) -> None:
    y = top - line / 2
    for role, lines in turns:
        colour = KIND_COLOURS[RESPONSE if role == "assistant" else PROMPT]
        name = {"user": "prompt", "assistant": "response"}.get(role, role)
        figure.text(left, y, name, fontsize=7.5, color=colour, weight="bold", va="center")
        for text in lines:
            y -= line
            figure.text(left, y, text, fontsize=8.5, color=INK, va="center")
        y -= line


def _draw_kinds(figure: Figure, sample: SampleCard, height: float) -> None:
    """A bar of the sample's tokens by kind."""
    axes = figure.add_axes((0.012, 0.4 * height, 0.976, height))
    num_prompt_tokens = sample.num_tokens - sample.num_image_tokens - sample.num_label_tokens
    parts = {IMAGE: sample.num_image_tokens, PROMPT: num_prompt_tokens, RESPONSE: sample.num_label_tokens}
    start = 0
    for kind, num_tokens in parts.items():
        axes.barh(0, num_tokens, left=start, color=KIND_COLOURS[kind], height=1)
        start += num_tokens
    axes.set(xlim=(0, start), ylim=(-0.5, 0.5), xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_color(GRID)
