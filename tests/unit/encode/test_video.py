"""Frames taken from videos: which, in what form, and what becomes of videos that are damaged."""

import hashlib
import io
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packing_udfs.config import Video
from packing_udfs.encode.images import ImageError
from packing_udfs.encode.video import choose_frames, frames, with_frames
from tests.unit.made_videos import GREY_STEP, make_video


def seconds(num: int, fps: int = 10) -> list[Fraction]:
    return [Fraction(i, fps) for i in range(num)]


def shown(data: bytes) -> int:
    """Which frame of `make_video` an image is, by its grey."""
    return round(float(np.asarray(Image.open(io.BytesIO(data)).convert("L")).mean()) / GREY_STEP)


@pytest.mark.parametrize(
    ("settings", "num", "expected"),
    [
        ({"num_frames": 2}, 8, [2, 6]),
        ({"num_frames": 3}, 3, [0, 1, 2]),
        ({"num_frames": 5}, 3, [0, 1, 2]),
        ({"num_frames": 1}, 9, [4]),
        ({}, 16, [1, 3, 5, 7, 9, 11, 13, 15]),  # eight
        ({"fps": 2}, 16, [0, 5, 10, 15]),
        ({"fps": 100}, 4, [0, 1, 2, 3]),  # no frame twice
        ({"fps": 0.1}, 4, [0]),
        ({"fps": 5, "max_frames": 2}, 16, [4, 12]),  # of 0 2 4 … 14
    ],
)
def test_which_frames(settings, num, expected):
    assert choose_frames(seconds(num), Video(**settings)) == expected


def test_frames_by_the_time_they_are_shown():
    """A frame that stays for three seconds is the one to see at each of them."""
    times = [Fraction(0), Fraction(1, 2), Fraction(7, 2), Fraction(4)]
    assert choose_frames(times, Video(fps=1.0)) == [0, 1, 3]


@given(
    steps=st.lists(st.integers(1, 50), min_size=1, max_size=60),
    fps=st.floats(0.05, 60),
    num=st.integers(1, 20),
)
def test_chosen_frames_increase_and_stay_in_bounds(steps, fps, num):
    times = [Fraction(sum(steps[:i]), 25) for i in range(len(steps))]
    for settings in (Video(num_frames=num), Video(fps=fps, max_frames=num)):
        chosen = choose_frames(times, settings)
        assert chosen == sorted(set(chosen))
        assert 1 <= len(chosen) <= num
        assert chosen[-1] < len(times)


@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts"])
def test_the_chosen_frames_are_the_ones_returned(container):
    found = frames(make_video(20, container=container), Video(num_frames=4))
    assert [i for i, _ in found] == [2, 7, 12, 17]
    assert [shown(data) for _, data in found] == [2, 7, 12, 17]


def test_equal_bytes_every_time():
    video = make_video(12)
    digests = {hashlib.sha256(data).hexdigest() for _ in range(3) for _, data in frames(video, Video(num_frames=3))}
    assert len(digests) == 3


def test_format_and_longest_edge():
    ((_, data),) = frames(make_video(2, size=(64, 128)), Video(num_frames=1, format="png", longest_edge=50))
    image = Image.open(io.BytesIO(data))
    assert (image.format, image.size) == ("PNG", (50, 25))
    ((_, data),) = frames(make_video(2, size=(64, 128)), Video(num_frames=1, longest_edge=500))
    image = Image.open(io.BytesIO(data))
    assert (image.format, image.size) == ("JPEG", (128, 64))


def test_frames_are_turned_as_the_container_asks():
    """The matrix of the track header turns a quarter clockwise, as telephones write it."""
    video = bytearray(make_video(2, size=(32, 64)))
    matrix = video.index(b"tkhd") + 4 + 4 + 20 + 8 + 8
    assert struct.unpack_from(">9i", video, matrix) == (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    struct.pack_into(">9i", video, matrix, 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    ((_, data),) = frames(bytes(video), Video(num_frames=1))
    assert Image.open(io.BytesIO(data)).size == (32, 64)


@pytest.mark.parametrize("kind", ["no video", "cut", "overwritten"])
def test_damaged_videos(kind):
    whole = make_video(30, noise=True)
    assert len(frames(whole, Video(num_frames=30))) == 30
    middle = whole.index(b"mdat") + 20_000
    data = {
        "no video": b"no video" * 100,
        "cut": whole[:middle],
        "overwritten": whole[:middle] + bytes(4000) + whole[middle + 4000 :],
    }
    with pytest.raises(ImageError) as error:
        frames(data[kind], Video(num_frames=8))
    assert error.value.reason == "video_broken"


def test_a_cut_video_whose_index_comes_first_lacks_frames():
    whole = make_video(30, noise=True, faststart=True)
    assert whole.index(b"moov") < whole.index(b"mdat")
    with pytest.raises(ImageError, match="of 30 frames are there"):
        frames(whole[:30_000], Video(num_frames=8))


def text(value: str) -> dict:
    return {"type": "text", "text": value}


IMAGE, VIDEO = {"type": "image", "text": None}, {"type": "video", "text": None}


def test_frames_stand_where_the_videos_stood():
    """Images come first in the list, then videos; afterwards all are in the order of their placeholders."""
    media = [
        {"bytes": b"one", "path": "1.jpg"},
        {"bytes": b"two", "path": "2.jpg"},
        {"bytes": make_video(4), "path": "a.mp4"},
        {"bytes": make_video(9), "path": None},
    ]
    messages = [
        {"role": "user", "content": [VIDEO, text("then"), IMAGE, VIDEO]},
        {"role": "assistant", "content": [text("yes")]},
        {"role": "user", "content": [IMAGE]},
    ]
    expanded, images = with_frames(messages, media, Video(num_frames=2))
    assert [image["path"] for image in images] == [
        "a.mp4#1.jpg",
        "a.mp4#3.jpg",
        "1.jpg",
        "video#2.jpg",
        "video#6.jpg",
        "2.jpg",
    ]
    assert [shown(image["bytes"]) for image in images if "#" in image["path"]] == [1, 3, 2, 6]
    assert expanded == [
        {"role": "user", "content": [IMAGE, IMAGE, text("then"), IMAGE, IMAGE, IMAGE]},
        messages[1],
        messages[2],
    ]
    assert messages[0]["content"][0] == VIDEO  # what was given is as it was


def test_without_videos_nothing_changes():
    messages, media = [{"role": "user", "content": [IMAGE]}], [{"bytes": b"one", "path": None}]
    assert with_frames(messages, media, Video()) == (messages, media)


@pytest.mark.parametrize(
    ("media", "reason"),
    [
        ([], "image_count"),
        ([{"bytes": b"", "path": None}], "image_missing"),
        ([None], "image_missing"),
        ([{"bytes": b"x", "path": None}] * 2, "image_count"),
        ([{"bytes": b"x", "path": None}], "video_broken"),
    ],
)
def test_videos_that_are_not_there(media, reason):
    with pytest.raises(ImageError) as error:
        with_frames([{"role": "user", "content": [VIDEO]}], media, Video())
    assert error.value.reason == reason
