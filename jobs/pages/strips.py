"""Packs as strips: tokens by kind from left to right, a band of samples above, and images below their placeholders.

A strip is geometry in a view box of `WIDTH` units. `macros.html.jinja` draws it as SVG, which is sharp at any size and
shows on hovering what each part is.
"""

from collections.abc import Sequence

from jobs.pages.drawing import KIND_COLOURS, KIND_NAMES
from packing_udfs.published.pictures import PAD

__all__ = ["legend", "strip"]

WIDTH = 1000
# Alternating, so that neighbours differ; none is a colour of a kind of token.
SOURCE_COLOURS = (("#0f8a6d", "#57b79f"), ("#7b5cc4", "#b09cdd"), ("#b5446e", "#d98aa8"), ("#5d6b1f", "#a3b06a"))
THUMB, GAP = 58, 4  # units: the longer side of an image below the strip, and the space between two


def strip(pack: dict, seq_len: int, sources: Sequence[str]) -> dict:
    """A pack of `published.pictures.draw` and the geometry of its parts. `sources`: their order fixes their colours."""
    scale = WIDTH / max(seq_len, pack["num_tokens"])
    padding = seq_len - pack["num_tokens"]
    kinds, at = [], 0
    for kind, num_tokens in [*pack["runs"], [PAD, padding]] if padding > 0 else pack["runs"]:
        place = {"x": at * scale, "width": num_tokens * scale}
        kinds.append({**place, "num_tokens": num_tokens, "name": KIND_NAMES[kind], "colour": KIND_COLOURS[kind]})
        at += num_tokens
    samples, at = [], 0
    for i, sample in enumerate(pack["samples"]):
        shades = SOURCE_COLOURS[sources.index(sample["source"]) % len(SOURCE_COLOURS)]
        samples.append({**sample, "x": at * scale, "width": sample["num_tokens"] * scale, "colour": shades[i % 2]})
        at += sample["num_tokens"]
    images = _images(pack["images"], scale)
    return {**pack, "width": WIDTH, "thumb": THUMB, "kinds": kinds, "samples": samples, "images": images,
            "num_hidden": pack["num_images"] - len(images)}  # fmt: skip


def _images(images: list[dict], scale: float) -> list[dict]:
    """Images below the middle of their placeholders, moved aside where they would overlap. The last may lack room."""
    sizes = [_size(image) for image in images]
    while sum(width + GAP for width, _ in sizes) > WIDTH:
        sizes.pop()
    centres = [((image["start"] or 0) + image["num_tokens"] / 2) * scale for image in images]
    lefts: list[float] = []
    for centre, (width, _) in zip(centres, sizes, strict=False):
        lefts.append(max(centre - width / 2, lefts[-1] + sizes[len(lefts) - 1][0] + GAP if lefts else 0))
    room = float(WIDTH)
    for i in reversed(range(len(lefts))):
        lefts[i] = min(lefts[i], room - sizes[i][0])
        room = lefts[i] - GAP
    return [
        {"x": left, "width": width, "height": height, "centre": centre, "image": image}
        for left, (width, height), centre, image in zip(lefts, sizes, centres, images, strict=False)
    ]


def _size(image: dict) -> tuple[float, float]:
    """Width and height in units, the longer one THUMB, none below a sixth of it."""
    longer = max(image["width"], image["height"])
    return max(THUMB * image["width"] / longer, THUMB / 6), max(THUMB * image["height"] / longer, THUMB / 6)


def legend(sources: Sequence[str]) -> list[dict]:
    """What the colours of strips mean."""
    kinds = [{"name": name, "colours": [colour]} for name, colour in zip(KIND_NAMES, KIND_COLOURS, strict=True)]
    shades = [SOURCE_COLOURS[i % len(SOURCE_COLOURS)] for i in range(len(sources))]
    return kinds + [{"name": f"samples of {s}", "colours": list(c)} for s, c in zip(sources, shades, strict=True)]
