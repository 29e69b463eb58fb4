"""What real data has and clean data lacks: ratings, low-rated turns, duplicates, rows that cannot be used."""

import random

RATINGS = ("relevance", "image_correspondence", "visual_dependency", "formatting")
OF_IMAGES = ("image_correspondence", "visual_dependency")
LOW_RATED_ROW = 40  # in each configuration, the row whose turns are all rated 1
HTML_ERROR = b"<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head><body>Not Found</body></html>\n"
JPEG_START = bytes.fromhex("ffd8ffe000104a46494600010101")
NUM_FLAWS = {"photos_and_drawings": 4, "charts_and_pages": 3}


def rate(rows: list[dict]) -> list[dict]:
    """Add ratings of 3 to 5 for every turn, and 1 for all turns of one row and the last turn of every 12th.

    The ratings that are about images are null on text-only rows. `<rating>_min` is the least of its row.
    """
    rated = []
    for i, row in enumerate(rows):
        draw = random.Random(i)
        columns = {}
        for name in RATINGS:
            ratings = draw.choices((3, 4, 5), weights=(1, 4, 6), k=len(row["texts"]))
            if i == LOW_RATED_ROW:
                ratings = [1] * len(ratings)
            elif i % 12 == 5 and name == "relevance":
                ratings[-1] = 1
            if name in OF_IMAGES and not row["images"]:
                ratings = None
            columns[f"{name}_ratings"] = ratings
            columns[f"{name}_min"] = min(ratings) if ratings else None
        rated.append({**row, **columns})
    return rated


def add_flaws(config: str, rows: list[dict]) -> list[dict]:
    """Append `NUM_FLAWS[config]` rows: a duplicate of an earlier row, and rows that no demo can train on."""
    if config == "photos_and_drawings":
        flaws = [
            rows[12],
            {**rows[0], "images": [{"bytes": JPEG_START, "path": "cut_off_in_its_header.jpg"}]},
            {**rows[2], "images": [{"bytes": None, "path": "path_without_bytes.jpg"}]},
            {**rows[4], "images": [{"bytes": HTML_ERROR, "path": "saved_error_page.jpg"}]},
        ]
    else:
        flaws = [
            rows[12],
            {**rows[0], "texts": None},
            _too_long(rows),
        ]
    assert len(flaws) == NUM_FLAWS[config]
    return [*rows, *flaws]


def without_flaws(config: str, rows: list[dict]) -> list[dict]:
    """The inverse of `add_flaws(config, rate(rows))`: rows of images, texts, source, license."""
    return [
        {name: row[name] for name in ("images", "texts", "source", "license")} for row in rows[: -NUM_FLAWS[config]]
    ]


def _too_long(rows: list[dict]) -> dict:
    """The three longest text-only conversations in one row, three times 4,096 tokens."""
    text_only = [row for row in rows if not row["images"]]
    longest = sorted(text_only, key=lambda row: -sum(len(turn["assistant"]) for turn in row["texts"]))[:3]
    return rate([{**longest[0], "texts": [turn for row in longest for turn in row["texts"]]}])[0]
