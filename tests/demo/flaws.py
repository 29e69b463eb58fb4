"""What real data has and clean data lacks: ratings, low-rated turns, duplicates, rows that cannot be used."""

import random

RATINGS = ("relevance", "image_correspondence", "visual_dependency", "formatting")
OF_IMAGES = ("image_correspondence", "visual_dependency")
HTML_ERROR = b"<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head><body>Not Found</body></html>\n"
JPEG_START = bytes.fromhex("ffd8ffe000104a46494600010101")


def rate(rows: list[dict]) -> list[dict]:
    """Add ratings of 3 to 5 for every turn; every 12th row has a turn rated 1, two rows nothing but turns rated 1.

    The ratings that are about images are null on text-only rows. `<rating>_min` is the least of its row.
    """
    rated = []
    for i, row in enumerate(rows):
        draw = random.Random(i)
        columns = {}
        for name in RATINGS:
            if name in OF_IMAGES and not row["images"]:
                columns[f"{name}_ratings"] = columns[f"{name}_min"] = None
                continue
            ratings = draw.choices((3, 4, 5), weights=(1, 4, 6), k=len(row["texts"]))
            if i == 40:
                ratings = [1] * len(ratings)
            elif i % 12 == 5 and name == "relevance":
                ratings[-1] = 1
            columns[f"{name}_ratings"], columns[f"{name}_min"] = ratings, min(ratings)
        rated.append({**row, **columns})
    return rated


def add_flaws(config: str, rows: list[dict]) -> list[dict]:
    """Append duplicates of earlier rows and unusable rows, which the demo's report shows as such."""
    head, last = rows[:11], rows[0]
    broken = {
        "photos_and_drawings": [
            {**last, "images": [{"bytes": JPEG_START, "path": "cut_off_in_header.jpg"}]},
            {**last, "images": [{"bytes": None, "path": "not_stored.jpg"}]},
            {**last, "images": [{"bytes": HTML_ERROR, "path": "saved_error_page.jpg"}]},
        ],
        "charts_and_pages": [
            {**last, "texts": None},
            {**last, "images": [], "texts": _long_texts(rows)},
        ],
    }
    return [*rows, head[3], head[10], *broken[config]]


def _long_texts(rows: list[dict]) -> list[dict]:
    longest = sorted(rows, key=lambda row: -sum(len(t["assistant"]) for t in row["texts"]))[:4]
    return [turn for row in longest for turn in row["texts"]]
