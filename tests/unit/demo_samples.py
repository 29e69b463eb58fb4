"""The demo's rows as samples, by plain Python instead of Spark."""

import hashlib
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from packing_udfs.contract import SAMPLE_SCHEMA

DEMO = Path(__file__).parents[2] / "jobs" / "demo"
MIN_RATINGS = {
    "relevance": 2,
    "image_correspondence": 2,
    "visual_dependency": 1,
    "formatting": 2,
}  # conf/jobs/demo.yaml


def as_spark_gives(rows: list[dict]) -> pd.DataFrame:
    """Rows as a grouped pandas UDF gets them: lists as NumPy arrays of dicts, integers with nulls as floats."""
    return pa.Table.from_pylist(rows, schema=SAMPLE_SCHEMA).to_pandas()


def message(role: str, text: str | None, num_images: int = 0) -> dict:
    images = [{"type": "image", "text": None}] * num_images
    return {"role": role, "content": [*images, {"type": "text", "text": text}]}


def content_id(images: list, messages) -> int:
    """A 64-bit id of a sample's content, as Spark's xxhash64 is one."""
    plain = repr(([image and image["bytes"] for image in images or []], messages)).encode()
    return int.from_bytes(hashlib.sha256(plain).digest()[:8], "little", signed=True)


def demo_rows() -> list[dict]:
    """Every row of the demo's two configurations, 229 in all."""
    found = []
    for path in sorted((DEMO / "source").rglob("*.parquet")):
        for number, row in enumerate(pq.read_table(path).to_pylist()):
            found.append(_sample(row, path, number))
    return found


def _sample(row: dict, path: Path, number: int) -> dict:
    turns = row["texts"] or []
    passing = [
        turn
        for i, turn in enumerate(turns)
        if all(
            (row[f"{name}_ratings"] or {i: None})[i] in (None, *range(least, 6)) for name, least in MIN_RATINGS.items()
        )
    ]
    reason = "texts_missing" if not turns else None if passing else "ratings"
    images = row["images"] or []
    messages = []
    for i, turn in enumerate(passing):
        messages.append(message("user", turn["user"], len(images) if i == 0 else 0))
        messages.append(message("assistant", turn["assistant"]))
    return {
        "sample_id": content_id(images if reason is None else [], messages or [path.name, number]),
        "source": path.parent.name,
        "file": path.relative_to(DEMO / "source").as_posix(),
        "row": number,
        "copy": 0,
        "messages": messages if reason is None else None,
        "images": images if reason is None else None,
        "reason": reason,
        "num_turns_dropped": len(turns) - len(passing),
    }
