"""A few packs as little enough to send and to draw: kinds of tokens in runs, samples, and images as thumbnails.

A shard draws some packs of its first row group and sends them with its counts, because the driver never sees a pack;
whoever reads the published row group later draws the same. Only decoding costs: some ms an image, `MAX_IMAGES` at most
in each of `NUM_PACKS` packs, so that a drawing stays within some tens of kB.

Which token is the placeholder of images is found in the packs themselves (`image_token_id`), so that no processor is
needed to draw what somebody else packed.
"""

import base64
import io
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from packing_udfs.encode.images import ImageError, decode

PROMPT, RESPONSE, IMAGE, PAD = range(4)  # kinds of positions
NUM_PACKS = 4
MAX_IMAGES = 12
EDGE, QUALITY = 72, 70  # of a thumbnail: pixels of the longer side, JPEG's quality


def spread(num_rows: int, num: int = NUM_PACKS) -> list[int]:
    """`num` rows of `num_rows` at equal distances, the first and the last among them."""
    return np.unique(np.linspace(0, num_rows - 1, num).astype(np.int64)).tolist()


def draw(row_group: pa.Table, rows: Sequence[int] | None = None) -> list[dict]:
    """Some packs of one row group (`contract.PACK_SCHEMA`; `rows`, else `spread`) as plain JSON values.

    Each is {"row", "num_tokens", "num_label_tokens", "vision_cost", "num_images", "runs": [[kind, num_tokens], …],
    "samples": [{"id", "source", "num_tokens", "num_label_tokens", "num_images"}, …], "images": [{"start", "num_tokens",
    "height", "width", "jpeg"}, …]}: `start` is an image's first placeholder, `jpeg` base64, or None where the image
    does not decode. Of more than MAX_IMAGES images, the first are there.
    """
    rows = spread(row_group.num_rows) if rows is None else rows
    token = image_token_id(row_group)
    return [_draw(row, row_group.slice(row, 1).to_pylist()[0], token) for row in rows]


def _draw(row: int, pack: dict, token: int | None) -> dict:
    labels, lengths = np.asarray(pack["labels"]), np.asarray(pack["sample_lengths"])
    trained = np.add.reduceat(labels >= 0, np.cumsum(lengths) - lengths)
    columns = ("sample_ids", "sample_sources", "sample_lengths", "sample_num_images")
    names = ("id", "source", "num_tokens", "num_images", "num_label_tokens")
    samples = zip(*(pack[name] for name in columns), trained.tolist(), strict=True)
    totals = {name: pack[name] for name in ("num_tokens", "num_label_tokens", "vision_cost", "num_images")}
    return {
        "row": row,
        **totals,
        "runs": runs(kinds(pack["input_ids"], labels, token)),
        "samples": [dict(zip(names, sample, strict=True)) for sample in samples],
        "images": _images(pack, np.flatnonzero(np.asarray(pack["input_ids"]) == token).tolist()),
    }


def _images(pack: dict, placeholders: list[int]) -> list[dict]:
    counts = pack["image_num_tokens"]
    firsts = (np.cumsum(counts) - counts).tolist() if counts else []
    shown = zip(pack["images"][:MAX_IMAGES], pack["image_sizes"], counts, firsts, strict=False)
    return [
        {
            "start": placeholders[first] if first < len(placeholders) else None,
            "num_tokens": count,
            **size,
            "jpeg": None if (data := thumbnail(image["bytes"])) is None else base64.b64encode(data).decode(),
        }
        for image, size, count, first in shown
    ]


def thumbnail(data: bytes, edge: int = EDGE, quality: int = QUALITY) -> bytes | None:
    """An image as a small JPEG, None when it does not decode. `edge`: pixels of its longer side at most."""
    try:
        image = decode(data)
    except ImageError:
        return None
    image.thumbnail((edge, edge))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def kinds(input_ids, labels, token: int | None) -> np.ndarray:
    """PROMPT, RESPONSE (it is trained) or IMAGE for each token, uint8 [num_tokens]."""
    is_image = np.asarray(input_ids) == (-1 if token is None else token)
    return np.where(is_image, IMAGE, np.where(np.asarray(labels) >= 0, RESPONSE, PROMPT)).astype(np.uint8)


def runs(values: np.ndarray) -> list[list[int]]:
    """Runs of equal values as [value, length]: runs([0, 0, 2, 2, 2]) == [[0, 2], [2, 3]]."""
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    return [
        [int(values[at]), n] for at, n in zip(starts, np.diff(np.append(starts, len(values))).tolist(), strict=True)
    ]


def image_token_id(packs: pa.Table) -> int | None:
    """The id that stands as often in every sample as its images have placeholders; None when none does.

    packs: `input_ids`, `sample_lengths`, `sample_num_images` and `image_num_tokens` of some packs, the more the surer:
    a text token can stand as often as the placeholders in one sample, but hardly in all of them.
    """
    columns = ("input_ids", "sample_lengths", "sample_num_images", "image_num_tokens")
    ids, lengths, num_images, num_tokens = (packs[c].combine_chunks().flatten().to_numpy() for c in columns)
    placeholders = segment_sums(num_tokens, num_images)
    if not placeholders.any() or lengths.sum() != len(ids):
        return None
    most = int(placeholders.argmax())
    start = int(lengths[:most].sum())
    found, counts = np.unique(ids[start : start + lengths[most]], return_counts=True)
    candidates = found[counts == placeholders[most]].tolist()
    return next((c for c in candidates if np.array_equal(segment_sums(ids == c, lengths), placeholders)), None)


def segment_sums(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sums of neighbouring values, `counts` of them at a time: segment_sums([1, 2, 3], [2, 0, 1]) == [3, 0, 3]."""
    ends = np.cumsum(counts)
    total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    return total[ends] - total[ends - counts]
