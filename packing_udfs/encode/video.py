"""Videos as images: frames taken at set times and encoded, in place of the video in a sample.

The times in the container decide which frames are taken, before anything is decoded. Then the video is decoded once,
front to back, up to the last frame wanted. That costs about 1 ms of a core for each frame of 640 × 360 on the way,
however few are kept. Rejected: seeking to each frame, which silently gives other frames where the container's index is
wrong or missing.

The same bytes give the same frames: video decoders are exact by their standards, the conversion to RGB is the exact
one, and one thread decodes. Damage is found where the decoder reports it or where frames are missing, but not where
damaged bytes decode to other pixels. Needs PyAV: `pip install packing-udfs[video]`.
"""

import io
from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from PIL import Image

from packing_udfs.config import Video
from packing_udfs.encode.images import MAX_PIXELS, ImageError, save

__all__ = ["choose_frames", "frames", "with_frames"]

_DEFAULT_NUM_FRAMES = 8
_JPEG_QUALITY = 90
_ROTATIONS = {  # degrees counterclockwise by which the container asks a player to turn the frame
    90: Image.Transpose.ROTATE_90,
    -90: Image.Transpose.ROTATE_270,
    180: Image.Transpose.ROTATE_180,
    -180: Image.Transpose.ROTATE_180,
}


def with_frames(
    messages: list[dict], media: list[dict | None], settings: Video
) -> tuple[list[dict], list[dict | None]]:
    """A sample's messages and images with frames in place of its videos.

    `media`: {"bytes", "path"} of the sample's images, then of its videos, each in the order of their placeholders. A
    part {"type": "video"} becomes one image part per frame.

        [video, "What happens?"], [clip.mp4]  ─▶  [image, image, "What happens?"], [clip.mp4#12.jpg, clip.mp4#37.jpg]

    Raises ImageError: `video_broken`, `image_missing` without bytes, `image_count` for unequal numbers.
    """
    kinds = [part["type"] for message in messages for part in message["content"]]
    num_images, num_videos = kinds.count("image"), kinds.count("video")
    if not num_videos:
        return messages, media
    if num_images + num_videos != len(media):
        raise ImageError(
            "image_count", f"{num_images} image and {num_videos} video placeholders for {len(media)} images and videos"
        )
    images, videos = iter(media[:num_images]), iter(media[num_images:])
    found: list[dict | None] = []
    expanded = []
    for message in messages:
        content = []
        for part in message["content"]:
            if part["type"] == "image":
                taken = [next(images)]
            elif part["type"] == "video":
                taken = _frames_of(next(videos), settings)
            else:
                content.append(part)
                continue
            found += taken
            content += [{"type": "image", "text": None}] * len(taken)
        expanded.append({**message, "content": content})
    return expanded, found


def _frames_of(video: dict | None, settings: Video) -> list[dict]:
    if video is None or not video["bytes"]:
        raise ImageError("image_missing", "the video has no bytes")
    name = video["path"] or "video"
    suffix = {"jpeg": "jpg", "png": "png"}[settings.format]
    return [{"bytes": data, "path": f"{name}#{i}.{suffix}"} for i, data in frames(video["bytes"], settings)]


def frames(data: bytes, settings: Video) -> list[tuple[int, bytes]]:
    """(index in the video, encoded image) of the chosen frames, in order. Raises ImageError."""
    import av  # an extra: most sources have no videos
    from av.error import FFmpegError

    try:
        with av.open(io.BytesIO(data)) as container:
            times, num_declared = _times(container)
        if len(times) < num_declared:
            raise ImageError("video_broken", f"{len(times)} of {num_declared} frames are there")
        chosen = choose_frames(times, settings)
        with av.open(io.BytesIO(data)) as container:
            return _decode(container, [(i, times[i]) for i in chosen], settings)
    except (FFmpegError, IndexError) as error:  # IndexError: no stream of video
        raise ImageError("video_broken", f"{type(error).__name__}: {error}") from None


def choose_frames(times: list[Fraction], settings: Video) -> list[int]:
    """Indices of the frames to take, increasing.

    `times`: when each frame is shown, in seconds, increasing. num_frames cuts the video into as many equal parts and
    takes the frame in the middle of each: 2 of 8 are the frames 2 and 6. fps takes the frame that is shown at
    0, 1/fps, 2/fps … seconds from the first.
    """
    if settings.fps is None:
        return _spread(range(len(times)), settings.num_frames or _DEFAULT_NUM_FRAMES)
    step = 1 / Fraction(settings.fps).limit_denominator(1000)
    num_steps = (times[-1] - times[0]) // step + 1
    shown = [bisect_right(times, times[0] + k * step) - 1 for k in range(num_steps)]
    return _spread(list(dict.fromkeys(shown)), settings.max_frames)


def _spread(items: Sequence[int], num: int) -> list[int]:
    """At most `num` of the items, each from the middle of one of `num` equal parts."""
    if len(items) <= num:
        return list(items)
    return [items[(2 * k + 1) * len(items) // (2 * num)] for k in range(num)]


def _times(container) -> tuple[list[Fraction], int]:
    """When each frame of the first video stream is shown, and how many frames its header declares (0: unknown)."""
    stream = container.streams.video[0]
    if stream.codec_context.width * stream.codec_context.height > MAX_PIXELS:
        raise ImageError("image_too_large", f"frames of more than {MAX_PIXELS} pixels")
    packets = [packet for packet in container.demux(stream) if packet.pts is not None]
    shown = sorted({packet.pts * stream.time_base for packet in packets if not packet.is_discard})
    if not shown:
        raise ImageError("video_broken", "there are no frames in it")
    return shown, stream.frames - (len(packets) - len(shown))


def _decode(container, wanted: list[tuple[int, Fraction]], settings: Video) -> list[tuple[int, bytes]]:
    """`wanted`: index and time of each frame, in order."""
    stream = container.streams.video[0]
    stream.thread_type = "NONE"
    found: list[tuple[int, bytes]] = []
    for frame in container.decode(stream):
        if frame.is_corrupt:
            raise ImageError("video_broken", f"the frame at {float(frame.time):.2f} s is damaged")
        index, time = wanted[len(found)]
        if frame.pts is not None and frame.pts * stream.time_base >= time:
            found.append((index, _encode(frame, settings)))
            if len(found) == len(wanted):
                return found
    raise ImageError("video_broken", f"{len(found)} of {len(wanted)} frames could be decoded")


def _encode(frame, settings: Video) -> bytes:
    from av.video.reformatter import Interpolation

    exact = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT | Interpolation.FULL_CHR_H_INT
    image = Image.fromarray(np.ascontiguousarray(frame.reformat(format="rgb24", interpolation=exact).to_ndarray()))
    if frame.rotation in _ROTATIONS:
        image = image.transpose(_ROTATIONS[frame.rotation])
    if settings.longest_edge and max(image.size) > settings.longest_edge:
        scale = Fraction(settings.longest_edge, max(image.size))
        width, height = (max(1, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return save(image, settings.format, _JPEG_QUALITY)
