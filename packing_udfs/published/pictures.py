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
from packing_udfs.walk import samples, segment_sums, slices

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
    return {
        "row": row,
        **{name: pack[name] for name in ("num_tokens", "num_label_tokens", "vision_cost", "num_images")},
        "runs": runs(kinds(pack["input_ids"], pack["labels"], token)),
        "samples": [_sample(sample) for sample in samples(pack)],
        "images": _images(pack, np.flatnonzero(np.asarray(pack["input_ids"]) == token).tolist()),
    }


def _sample(sample: dict) -> dict:
    return {
        "id": sample["sample_ids"],
        "source": sample["sample_sources"],
        "num_tokens": sample["sample_lengths"],
        "num_images": sample["sample_num_images"],
        "num_label_tokens": int((np.asarray(sample["labels"]) >= 0).sum()),
    }


def _images(pack: dict, placeholders: list[int]) -> list[dict]:
    found = []
    parts = slices(pack["image_num_tokens"])
    for image, size, part in zip(pack["images"][:MAX_IMAGES], pack["image_sizes"], parts, strict=False):
        jpeg = thumbnail(image["bytes"])
        found.append({
            "start": placeholders[part.start] if part.start < len(placeholders) else None,
            "num_tokens": part.stop - part.start,
            **size,
            "jpeg": None if jpeg is None else base64.b64encode(jpeg).decode(),
        })  # fmt: skip
    return found


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
    lengths = np.diff(starts, append=len(values))
    return [list(run) for run in zip(values[starts].tolist(), lengths.tolist(), strict=True)]


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
