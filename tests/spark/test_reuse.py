"""A split that is packed again keeps its packs where they are, and uploads little."""

import pytest

from jobs import pack
from packing_udfs import config
from tests.spark.conftest import DEMO
from tests.spark.made_sources import VQA, parquet, picture, upload


def tree(repo: str, source: str, **sections) -> dict:
    made = {
        "sources": [{"repo": source, "name": "made"}],
        "processor": {"path": str(DEMO / "processor")},
        "pack": {"seq_len": 8192},
        "shards": {"num_shards": 2, "num_packs_per_row_group": 4},
        "output": {"repo": repo},
    }
    return {name: made.get(name, {}) | sections.get(name, {}) if name != "sources" else made[name] for name in made}


def rows(numbers, answer=lambda i: f"answer {i}") -> list[dict]:
    return [
        {"image": {"bytes": picture(i, 160, "PNG"), "path": f"{i}.png"}, "question": "what?", "answer": answer(i)}
        for i in numbers
    ]


@pytest.fixture(scope="module")
def first(spark) -> dict:
    """64 rows of 77 kB an image, packed into user/sticky."""
    upload("user/sticky-source", {"data/train/0.parquet": parquet(rows(range(64)), VQA)})
    return pack.run(config.parse(tree("user/sticky", "user/sticky-source")), spark)


def test_the_same_again_is_the_same_commit(first, spark):
    again = pack.run(config.parse(tree("user/sticky", "user/sticky-source")), spark)
    assert again["commit"] == first["commit"]
    assert again["reuse"] == {
        "num_packs_kept": first["splits"]["train"]["totals"]["num_packs"],
        "num_packs_moved": 0,
        "num_packs_changed": 0,
        "num_packs_new": 0,
        "why_afresh": {},
    }
    assert again["transfer"]["num_bytes_uploaded"] == 0
