"""Rows cut from openly licensed Parquet files in FineVision's columns: clip art, shapes, figures and their code.

Only rows whose `license` is in `OPEN` are taken. Images keep their original bytes unless they are larger than
`MAX_BYTES`; those are re-encoded with a palette of 64 colours, and their path ends in `.p64.png`.
"""

import io
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
from PIL import Image

OPEN = {"MIT", "BSD-3-Clause", "public-domain"}
SOURCES = {"openclipart", "easy_vqa", "sklearn_gallery", "sklearn_gallery_code"}
NOT_TAKEN = ("star_", "gnome-mime")  # a long series of rings, and icons with logos that are trademarks
MAX_BYTES = 15_000  # of an image that is kept as it is


def cut_rows(folder: Path) -> dict[str, list[dict]]:
    """The rows cut from `folder/*.parquet`: configuration name to rows of images, texts, source, license."""
    table = ds.dataset(sorted(Path(folder).glob("*.parquet"))).to_table(
        columns=["images", "texts", "source", "license"], filter=pc.field("license").isin(sorted(OPEN))
    )
    by_source: dict[str, list[dict]] = {}
    for row in table.to_pylist():
        by_source.setdefault(row["source"], []).append(row)
    clip_art = [row for row in by_source["openclipart"] if _is_small_drawing(row)]
    figures = [row for row in by_source["sklearn_gallery"] if len(row["images"][0]["bytes"]) <= 26_000]
    code = by_source["sklearn_gallery_code"]
    with_figures = [row for row in code if _fits_with_images(row)]
    text_only = [row for row in code if row not in with_figures and _num_chars(row) < 9_500]
    return {
        "photos_and_drawings": [
            *_spread(clip_art, 48),
            *({**row, "texts": row["texts"][:6]} for row in by_source["easy_vqa"][:8]),
            *_card_comparisons(by_source["openclipart"]),
        ],
        "charts_and_pages": [
            *(_smaller(row) for row in _spread(figures, 26)),
            *(_smaller(row) for row in _spread(with_figures, 10)),
            *(_without_images(row) for row in _spread(text_only, 27)),
        ],
    }


def _is_small_drawing(row: dict) -> bool:
    image = row["images"][0]
    if image["path"].startswith(NOT_TAKEN) or not 1_500 < len(image["bytes"]) < 12_000:
        return False
    return max(Image.open(io.BytesIO(image["bytes"])).size) >= 80


def _num_chars(row: dict) -> int:
    return sum(len(turn["assistant"]) for turn in row["texts"])


def _fits_with_images(row: dict) -> bool:
    """Whether figures and code stay below some 4,000 tokens and 120 kB; the rest becomes text-only."""
    small = sum(len(image["bytes"]) for image in row["images"]) < 120_000
    return small and _num_chars(row) / 2.5 + 900 * len(row["images"]) < 3_600


def _spread(rows: list[dict], count: int) -> list[dict]:
    """`count` rows at even distances, so that neighbours of one series are not all taken."""
    return [rows[i * len(rows) // count] for i in range(count)]


def _smaller(row: dict) -> dict:
    images = []
    for image in row["images"]:
        if len(image["bytes"]) > MAX_BYTES:
            page = Image.open(io.BytesIO(image["bytes"])).convert("RGBA")
            white = Image.new("RGBA", page.size, "white")
            white.alpha_composite(page)
            out = io.BytesIO()
            white.convert("RGB").quantize(64, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
                out, "PNG", optimize=True
            )
            image = {"bytes": out.getvalue(), "path": image["path"].removesuffix(".png") + ".p64.png"}
        images.append(image)
    return {**row, "images": images}


def _without_images(row: dict) -> dict:
    """A text-only row: the code of a figure's example, asked for by its title."""
    title = row["texts"][0]["user"].split("“")[1].split("”")[0]
    questions = [f"Write the Python code of the scikit-learn example “{title}”.", "Summarise what it shows."]
    texts = [{"user": user, "assistant": turn["assistant"]} for user, turn in zip(questions, row["texts"], strict=True)]
    return {**row, "images": [], "texts": texts}


RANKS = {"a": "ace", "2": "two", "3": "three", "4": "four", "5": "five", "6": "six", "7": "seven"}
SUITS = {"h": "hearts", "s": "spades", "d": "diamonds", "c": "clubs"}


def _card_comparisons(clip_art: list[dict]) -> list[dict]:
    """Rows of two to four playing cards, each a picture of its own, asked about together."""
    cards = {}
    for row in clip_art:
        parts = row["images"][0]["path"].removesuffix(".png").split("_")
        if parts[0] in ("simple", "ornamental") and len(parts) == 3 and parts[1] in SUITS and parts[2] in RANKS:
            cards.setdefault((parts[1], parts[2]), row)
    hands = sorted(cards)
    rows = []
    for i in range(6):
        hand = [hands[(5 * i + 2 * j) % len(hands)] for j in range(2 + i % 3)]
        names = [f"the {RANKS[rank]} of {SUITS[suit]}" for suit, rank in hand]
        texts = [
            {"user": "Name the cards in order.", "assistant": "They are " + ", then ".join(names) + "."},
            {"user": "How many cards are there?", "assistant": f"There are {len(hand)} cards."},
        ]
        images = [cards[card]["images"][0] for card in hand]
        rows.append({**cards[hand[0]], "images": images, "texts": texts})
    return rows
