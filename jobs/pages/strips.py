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
BAND, BAR, DROP = 8, 30, 22  # units: heights of the band, the strip, and the lines down to the images


def strip(pack: dict, seq_len: int, sources: Sequence[str]) -> dict:
    """The geometry of a pack of `published.pictures.draw`. `sources`: their order fixes their colours."""
    scale = WIDTH / max(seq_len, pack["num_tokens"])
    padding = seq_len - pack["num_tokens"]
    runs = [*pack["runs"], [PAD, padding]] if padding > 0 else pack["runs"]
    images = _images(pack["images"], scale)
    return {
        **{name: pack[name] for name in ("row", "num_tokens", "num_label_tokens", "vision_cost", "num_images")},
        "num_samples": len(pack["samples"]),
        "num_hidden": pack["num_images"] - len(images),
        "width": WIDTH,
        "height": BAND + 2 + BAR + (DROP + THUMB + 2 if images else 2),
        "kinds": _kinds(runs, scale),
        "samples": _samples(pack["samples"], scale, sources),
        "images": images,
    }


def _kinds(runs: list[list[int]], scale: float) -> list[dict]:
    found, at = [], 0
    for kind, num_tokens in runs:
        found.append({
            "x": at * scale, "y": BAND + 2, "width": num_tokens * scale, "height": BAR,
            "colour": KIND_COLOURS[kind], "title": f"{num_tokens:,} tokens: {KIND_NAMES[kind]}",
        })  # fmt: skip
        at += num_tokens
    return found


def _samples(samples: list[dict], scale: float, sources: Sequence[str]) -> list[dict]:
    found, at = [], 0
    for i, sample in enumerate(samples):
        shades = SOURCE_COLOURS[sources.index(sample["source"]) % len(SOURCE_COLOURS)]
        found.append({
            "x": at * scale, "width": sample["num_tokens"] * scale, "height": BAND,
            "cut": BAND + 2 + BAR, "colour": shades[i % 2],
            "title": f"sample {sample['id']} of {sample['source']}: {sample['num_tokens']:,} tokens, "
                     f"{sample['num_label_tokens']:,} trained, {sample['num_images']} images",
        })  # fmt: skip
        at += sample["num_tokens"]
    return found


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
    top = BAND + 2 + BAR
    return [
        {
            "x": left, "y": top + DROP, "width": width, "height": height, "top": top,
            "from": centre, "to": left + width / 2, "drop": top + DROP,
            "src": None if image["jpeg"] is None else f"data:image/jpeg;base64,{image['jpeg']}",
            "title": f"{image['width']} × {image['height']} pixels, {image['num_tokens']:,} tokens",
        }
        for left, (width, height), centre, image in zip(lefts, sizes, centres, images, strict=False)
    ]  # fmt: skip


def _size(image: dict) -> tuple[float, float]:
    """Width and height in units, the longer one THUMB, none below a sixth of it."""
    longer = max(image["width"], image["height"])
    return max(THUMB * image["width"] / longer, THUMB / 6), max(THUMB * image["height"] / longer, THUMB / 6)


def legend(sources: Sequence[str]) -> list[dict]:
    """What the colours of strips mean."""
    kinds = [{"name": name, "colours": [colour]} for name, colour in zip(KIND_NAMES, KIND_COLOURS, strict=True)]
    shades = [SOURCE_COLOURS[i % len(SOURCE_COLOURS)] for i in range(len(sources))]
    return kinds + [{"name": f"samples of {s}", "colours": list(c)} for s, c in zip(sources, shades, strict=True)]
