"""A source with FineVision's columns for the job's bench: every row differs, and the store finds nothing twice.

An image has the header of a real JPEG, of one of SIZES, and behind it random bytes in place of the picture: the job
looks at headers, and random bytes are as incompressible as a picture's. A row has one image, of a size log-normal
around the mean (σ 0.3), and a geometric number of turns (mean 3); words of questions and answers are log-normal (means
12 and 30, σ 0.5 and 0.8, as in `tests.bench.finevision`) from a vocabulary of 2,000 words.
"""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

SIZES = [(640, 480), (512, 512), (800, 600), (480, 640), (1024, 768), (900, 506)]
ROWS_PER_GROUP = 128
TURN = pa.struct([("user", pa.string()), ("assistant", pa.string())])
SCHEMA = pa.schema(
    [
        ("images", pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))),
        ("texts", pa.list_(TURN)),
        ("source", pa.string()),
        ("relevance_ratings", pa.list_(pa.int64())),
    ]
)
# As `datasets` writes it, so that it knows the images for images.
FEATURES = (
    b'{"info": {"features": {"images": {"feature": {"_type": "Image"}, "_type": "List"}, "texts": {"feature": '
    b'{"user": {"dtype": "string", "_type": "Value"}, "assistant": {"dtype": "string", "_type": "Value"}}, "_type": '
    b'"List"}, "source": {"dtype": "string", "_type": "Value"}, "relevance_ratings": {"feature": {"dtype": "int64", '
    b'"_type": "Value"}, "_type": "List"}}}}'
)


def write(folder: Path, num_rows: int, image_bytes: int, num_files: int) -> int:
    """Write `num_rows` rows in `num_files` files of equal length; returns their bytes."""
    (folder / "data").mkdir(parents=True)
    headers = [_header(size) for size in SIZES]
    words = [_word(np.random.default_rng(i)) for i in range(2_000)]
    paths = [folder / f"data/train-{i:05d}-of-{num_files:05d}.parquet" for i in range(num_files)]
    for i, path in enumerate(paths):
        rng = np.random.default_rng((num_rows, image_bytes, i))
        with pq.ParquetWriter(path, SCHEMA.with_metadata({b"huggingface": FEATURES}), compression="snappy") as writer:
            left = num_rows // num_files
            while left > 0:
                num = min(left, ROWS_PER_GROUP)
                rows = [_row(rng, headers, image_bytes, words) for _ in range(num)]
                writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
                left -= num
    return sum(path.stat().st_size for path in paths)


def _header(size: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (90, 120, 150)).save(buffer, "JPEG")
    data = buffer.getvalue()
    scan = data.index(b"\xff\xda")
    return data[: scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")]


def _word(rng: np.random.Generator) -> str:
    return "".join(rng.choice(["ka", "lo", "mi", "ne", "ru", "st", "ti", "va", "on", "er"], rng.integers(1, 5)))


def _row(rng: np.random.Generator, headers: list[bytes], image_bytes: int, words: list[str]) -> dict:
    num = max(256, round(image_bytes * rng.lognormal(-0.045, 0.3)))
    image = headers[rng.integers(len(headers))] + rng.bytes(num).replace(b"\xff", b"\x7f") + b"\xff\xd9"
    turns = [
        {"user": _text(rng, words, 12, 0.5) + "?", "assistant": _text(rng, words, 30, 0.8) + "."}
        for _ in range(rng.geometric(1 / 3))
    ]
    return {
        "images": [{"bytes": image, "path": None}],
        "texts": turns,
        "source": "generated",
        "relevance_ratings": rng.integers(3, 6, len(turns)).tolist(),
    }


def _text(rng: np.random.Generator, words: list[str], mean: int, sigma: float) -> str:
    num = 1 + int(mean * rng.lognormal(-(sigma**2) / 2, sigma))
    return " ".join([words[i] for i in rng.integers(0, len(words), num)])
