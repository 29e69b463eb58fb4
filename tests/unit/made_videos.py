"""Small videos whose frames say which they are: frame i is grey, `GREY_STEP * i` bright."""

import tempfile
from pathlib import Path

import numpy as np

GREY_STEP = 6


def make_video(
    num_frames: int,
    *,
    fps: int = 10,
    size: tuple[int, int] = (48, 64),
    container: str = "mp4",
    noise: bool = False,
    faststart: bool = False,
) -> bytes:
    """A video of `num_frames` grey frames (at most 40) of `size` (height, width), or of noise, which takes bytes.

    `faststart`: the index comes before the frames, as in videos for the web.
    """
    import av

    height, width = size
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "video")
        options = {"movflags": "faststart"} if faststart else {}
        with av.open(str(path), "w", format=container, options=options) as file:
            stream = file.add_stream("libx264", rate=fps, options={"crf": "4"})
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for i in range(num_frames):
                pixels = np.full((height, width, 3), GREY_STEP * i, np.uint8)
                if noise:
                    pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
                file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            file.mux(stream.encode())
        return path.read_bytes()
