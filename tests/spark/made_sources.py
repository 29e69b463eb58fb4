"""Small datasets on the Hub, made from what a test says is in them."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import CommitOperationAdd, HfApi
from PIL import Image

from packing_udfs.config import Source

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def picture(number: int, side: int = 32, kind: str = "JPEG") -> bytes:
    """A picture of noise; each number gives another."""
    out = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def upload(repo: str, files: dict[str, bytes], *, private: bool = False) -> str:
    """Make a dataset repository of these files and return its name."""
    api = HfApi()
    api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
    operations = [CommitOperationAdd(path, data) for path, data in files.items()]
    api.create_commit(repo, operations, commit_message="add", repo_type="dataset")
    return repo


def parquet(rows: list[dict] | pa.Table, schema: pa.Schema | None = None, **options) -> bytes:
    """Rows as a Parquet file."""
    out = io.BytesIO()
    pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, schema), out, **options)
    return out.getvalue()


VQA = pa.schema([("image", IMAGE), ("question", pa.string()), ("answer", pa.string())])


def vqa_rows(start: int, stop: int, side: int = 32) -> list[dict]:
    """Rows that differ: a picture, "question 7" and "answer 7"."""
    return [
        {"image": {"bytes": picture(i, side), "path": f"{i}.jpg"}, "question": f"question {i}", "answer": f"answer {i}"}
        for i in range(start, stop)
    ]


def vqa_row_file(start: int, stop: int, **options) -> bytes:
    """Those rows as a Parquet file."""
    return parquet(vqa_rows(start, stop), VQA, **options)


def source(repo: str, **fields) -> Source:
    return Source(repo=repo, **{"name": repo.rpartition("/")[2]} | fields)


def answers(rows) -> list[str]:
    """What the assistant says in each sample, sorted; null for what is no sample."""
    return sorted(row.messages[-1].content[0].text if row.messages else f"{row.reason}" for row in rows)
