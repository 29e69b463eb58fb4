"""Videos from the Hub to packs: frames are images like others, and broken videos are set aside."""

import importlib.util
import json

import numpy as np
import pyarrow as pa
import pytest
from datasets import load_dataset

from jobs.sources.pin import pin
from jobs.sources.pinned import SourceError
from packing_udfs.encode.images import decode
from tests.spark.made_sources import IMAGE, parquet, source, upload
from tests.spark.test_job import read_packs
from tests.unit.made_videos import GREY_STEP, make_video

NUM_FRAMES = 12


def rows(numbers) -> list[dict]:
    """Videos that differ by their height."""
    return [
        {"video": {"bytes": make_video(NUM_FRAMES, size=(32 + 2 * i, 64)), "path": f"{i}.mp4"}, "question": f"q {i}",
         "answer": f"answer {i}"}
        for i in numbers
    ]  # fmt: skip


SCHEMA = pa.schema([("video", IMAGE), ("question", pa.string()), ("answer", pa.string())])


@pytest.fixture(scope="module")
def videos(spark) -> str:
    given = rows(range(6))
    given[2]["video"]["bytes"] = b"no video"
    given[3]["video"] = None
    return upload("user/videos", {"data/train.parquet": parquet(given, SCHEMA)})


@pytest.fixture(scope="module")
def report(run_demo, videos) -> dict:
    sources = [{"repo": videos, "name": "videos", "video": {"num_frames": 3, "longest_edge": 48}}]
    return run_demo("user/packed-videos", sources=sources, quality={"max_quarantine_fraction": 0.5})


def test_frames_are_images_of_the_packs(report):
    packs = read_packs("user/packed-videos")
    found = {}
    for pack in packs:
        images = iter(pack["images"])
        for num in pack["sample_num_images"]:
            frames = [next(images) for _ in range(num)]
            found[frames[0]["path"].partition("#")[0]] = frames
        sizes = [(size["height"], size["width"]) for size in pack["image_sizes"]]
        assert sizes == [decode(image["bytes"]).size[::-1] for image in pack["images"]]
    assert sorted(found) == ["0.mp4", "1.mp4", "4.mp4", "5.mp4"]
    for name, frames in found.items():
        assert [frame["path"] for frame in frames] == [f"{name}#{i}.jpg" for i in (2, 6, 10)]
        grey = [float(np.asarray(decode(frame["bytes"]).convert("L")).mean()) for frame in frames]
        assert [round(value / GREY_STEP) for value in grey] == [2, 6, 10]
        assert {max(decode(frame["bytes"]).size) for frame in frames} == {48}


def test_broken_videos_are_set_aside(report):
    (counts,) = report["sources"]
    assert (counts["num_rows"], counts["num_packed"], counts["num_quarantined"]) == (6, 4, 2)
    quarantine = load_dataset("user/packed-videos", "quarantine", split="train")
    assert sorted((row["reason"], row["row"]) for row in quarantine) == [("image_missing", 3), ("video_broken", 2)]


def test_videos_need_pyav(videos, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SourceError, match=r"sources\.0\.video: user/videos has videos, which need PyAV: pip install"):
        pin(source(videos), "sources.0")


def test_a_folder_of_videos(run_demo):
    files = {f"train/{i}.mp4": row["video"]["bytes"] for i, row in enumerate(rows(range(3)))}
    lines = [{"file_name": f"{i}.mp4", "text": f"answer {i}"} for i in range(3)]
    files["train/metadata.jsonl"] = "\n".join(map(json.dumps, lines)).encode()
    repo = upload("user/video-folder", files)
    pinned = pin(source(repo), "sources.0")
    assert (pinned.num_rows, pinned.has_videos) == (3, True)
    report = run_demo("user/packed-folder", sources=[{"repo": repo, "name": "folder", "video": {"fps": 2.0}}])
    assert report["sources"][0]["num_packed"] == 3
    packs = read_packs("user/packed-folder")
    assert sum(pack["num_images"] for pack in packs) == 3 * 3  # at 0, 0.5 and 1 second of 1.2
