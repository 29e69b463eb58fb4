"""FineVision-like sources on the Hub: lengths and image sizes vary as real ones do, and rows have hardly any bytes.

Three in four rows have an image, one in ten of them two; answers are log-normal in words. Pictures are of one colour,
which the row's number chooses, so that a picture takes some hundred bytes at any size. Neighbours are alike: rows come
in runs of RUN, whose answers have a mean length of their own.
"""

import io
from collections.abc import Mapping
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import CommitOperationAdd, HfApi
from PIL import Image

RUN = 50
TURN = pa.struct([("user", pa.string()), ("assistant", pa.string())])
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
SCHEMA = pa.schema([("images", pa.list_(IMAGE)), ("texts", pa.list_(TURN))])
SIDES = (256, 384, 512, 640, 800, 1024, 1280)
WORDS = tuple("a the of chart shows value page line photo drawing with red blue large small left".split())  # noqa: SIM905


@cache
def _picture(width: int, height: int, colour: int) -> bytes:
    out = io.BytesIO()
    Image.new("P", (width, height), colour).save(out, "GIF")
    return out.getvalue()


def rows(num_rows: int, seed: int) -> list[dict]:
    """Rows with FineVision's columns."""
    rng = np.random.default_rng(seed)
    found = []
    for start in range(0, num_rows, RUN):
        mean = rng.lognormal(3.3, 0.5)
        for i in range(start, min(start + RUN, num_rows)):
            num_images = int(rng.random() < 0.75) * (1 + int(rng.random() < 0.1))
            sizes = rng.choice(SIDES, (num_images, 2)).tolist()
            images = [{"bytes": _picture(*size, i % 256), "path": f"{i}-{k}.gif"} for k, size in enumerate(sizes)]
            texts = [_turn(rng, mean, f"{i}" if not k else "more") for k in range(rng.geometric(0.5))]
            found.append({"images": images, "texts": texts})
    return found


def _turn(rng: np.random.Generator, mean: float, name: str) -> dict:
    question, answer = (" ".join(rng.choice(WORDS, 1 + int(rng.lognormal(0, 0.8) * words))) for words in (8, mean))
    return {"user": f"{name}: {question}?", "assistant": answer}


def size_of(row: dict) -> tuple[int, int]:
    """(height, width) of a row's first image."""
    return Image.open(io.BytesIO(row["images"][0]["bytes"])).size[::-1]


def upload(
    repo: str, made: list[dict], *, num_files: int = 4, row_group_size: int = 100, more: Mapping[str, str] | None = None
) -> str:
    """A dataset repository with these rows; returns its name. `more`: columns beside FineVision's, and their types."""
    schema = pa.schema([*SCHEMA, *(more or {}).items()])
    api, operations = HfApi(), []
    api.create_repo(repo, repo_type="dataset")
    for i in range(num_files):
        out = io.BytesIO()
        part = made[i * len(made) // num_files : (i + 1) * len(made) // num_files]
        pq.write_table(pa.Table.from_pylist(part, schema), out, row_group_size=row_group_size)
        operations.append(CommitOperationAdd(f"data/train-{i:05d}-of-{num_files:05d}.parquet", out.getvalue()))
    api.create_commit(repo, operations, commit_message="add", repo_type="dataset")
    return repo
