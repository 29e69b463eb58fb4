"""Images as bytes: the size a model will see, read from the header, and the decoder that agrees with it.

`read_size` (in the job) and `decode` (in the reader) are two halves of one promise: a kept image decodes to the
size that was encoded. Headers only, 13–24 µs an image against 1 ms and more for a decode; the price is that a
header does not prove a body, so a truncated body is found by `decode` unless it is asked for earlier.
Rejected: Pillow's own format guessing over all plug-ins, because EPS, WMF or ICO open and then fail or change size.

The format allow-list, one pixel cap and the table of modes decide what is accepted; every refusal is an
`ImageError` whose `reason` is one of `contract.REASONS` and goes into the quarantine.
"""

import io
import struct
import warnings

import numpy as np
from PIL import Image, ImageOps

from packing_udfs.contract import REASONS

# An MPO (several JPEGs in one file, as cameras make) opens as JPEG.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM")
MAX_PIXELS = 89_478_485  # Pillow's own warning threshold: a quarter of a GiB at three bytes a pixel
_EXIF_ORIENTATION = 0x0112
_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")
_NOT_EIGHT_BIT = ("F", "I")
# What Pillow raises for bytes that are not a sound image; DecompressionBombError is handled apart.
_PILLOW_ERRORS = (OSError, ValueError, SyntaxError, NotImplementedError, TypeError, KeyError, IndexError,
                  EOFError, OverflowError, ZeroDivisionError, struct.error, MemoryError)  # fmt: skip


class ImageError(ValueError):
    """An image that cannot be used; `reason` is one of `contract.REASONS`."""

    def __init__(self, reason: str, detail: str):
        assert reason in REASONS
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def _open(data: bytes | None) -> Image.Image:
    if not data:
        raise ImageError("image_missing", "the image has no bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata; size and pixels are what counts here
            image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.UnidentifiedImageError:
        raise ImageError("image_unidentified", f"{len(data)} bytes starting {data[:12]!r}") from None
    except Image.DecompressionBombError as error:
        raise ImageError("image_too_large", str(error)) from None
    except _PILLOW_ERRORS as error:
        raise ImageError("image_broken", f"{type(error).__name__}: {error}") from None
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ImageError("image_too_large", f"{width} × {height} pixels, more than {MAX_PIXELS}")
    if image.mode in _NOT_EIGHT_BIT and image.format != "PNG":
        raise ImageError("image_mode", f"{image.format} of mode {image.mode} has no agreed range")
    return image


def _is_transposed(image: Image.Image, data: bytes) -> bool:
    """Whether EXIF turns the image by a quarter (orientations 5–8), which swaps height and width."""
    if image.format == "PNG" and b"eXIf" not in data:
        return False  # Pillow would decode all pixels to look for EXIF behind them
    return image.getexif().get(_EXIF_ORIENTATION, 1) in (5, 6, 7, 8)


def read_size(data: bytes | None) -> tuple[int, int]:
    """(height, width) in pixels as `decode` will return the image, from its header.

    Raises ImageError with the reason why the image cannot be used.
    """
    image = _open(data)
    width, height = image.size
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            transposed = _is_transposed(image, data)
    except _PILLOW_ERRORS as error:
        raise ImageError("image_broken", f"EXIF: {type(error).__name__}: {error}") from None
    return (width, height) if transposed else (height, width)


def decode(data: bytes | None) -> Image.Image:
    """The image as RGB, 8 bits a channel: first frame, EXIF applied, transparency on white, 16 bits rescaled.

    Raises ImageError with the reason why the image cannot be used.
    """
    image = _open(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image.load()
            return _to_rgb(ImageOps.exif_transpose(image))
    except Image.DecompressionBombError as error:
        raise ImageError("image_too_large", str(error)) from None
    except _PILLOW_ERRORS as error:
        raise ImageError("image_broken", f"{type(error).__name__}: {error}") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _SIXTEEN_BIT or image.mode == "I":  # convert("RGB") would clip 16 bits to white
        pixels = np.asarray(image).astype(np.uint32)
        image = Image.fromarray((pixels >> 8).clip(0, 255).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")
