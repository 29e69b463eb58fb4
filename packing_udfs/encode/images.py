"""Images as bytes: the size that a model will see, read from the header, and the decoder that agrees with it.

`read_size` (in the job) and `decode` (in the reader) keep one promise: a kept image decodes to the size that was
encoded. Reading a header takes 13–24 µs, a decode 1 ms and more. The price: a header does not prove a body, so only
`decode` finds a truncated one, or `prepare` when asked to verify. Every refusal is an `ImageError` with one of
`contract.REASONS` and goes into the quarantine. Rejected: Pillow's format guessing over all plug-ins, because EPS, WMF
or ICO open and then fail or change size.

Bytes stay as they came unless `max_side` asks for smaller images. A larger image is then decoded, scaled with Lanczos
and stored upright without metadata: as PNG when it came without loss (PNG, GIF, BMP, TIFF) and has at most 4,096
colours (charts, pages, drawings), else as JPEG of quality 92. The result depends only on the bytes and on Pillow's
build: equal for one lock file and processor architecture. Rejected: keeping the source's format, which makes photos in
PNG ten times larger than needed.
"""

import io
import struct
import warnings
from contextlib import contextmanager

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from packing_udfs.contract import REASONS
from packing_udfs.encode.family import Size

__all__ = ["FORMATS", "MAX_PIXELS", "ImageError", "decode", "prepare", "read_size", "save"]

# An MPO (several JPEGs in one file, as cameras make) opens as JPEG.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000")
_WITHOUT_LOSS = ("PNG", "GIF", "BMP", "TIFF")
_MAX_COLOURS_OF_PNG = 4096
_JPEG_QUALITY = 92
MAX_PIXELS = 50_000_000  # every format then decodes in less than 1 GB and about 5 s; JPEG 2000 is the worst
_EXIF_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # what undoes an EXIF orientation; 5 to 8 swap height and width
# Keys of Pillow's info where a PNG may tell its orientation, besides the chunk eXIf.
_PNG_TEXT_EXIF = ("Raw profile type exif", "XML:com.adobe.xmp")
_PNG_TEXT_EXIF_BYTES = tuple(key.encode() for key in _PNG_TEXT_EXIF)
_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N")
_TIFF_PHOTOMETRIC, _TIFF_BITS, _TIFF_SAMPLE_FORMAT = 262, 258, 339
# What Pillow raises for bytes that are not a sound image, besides DecompressionBombError.
_PILLOW_ERRORS = (OSError, ValueError, SyntaxError, RuntimeError, TypeError, LookupError, EOFError, ArithmeticError,
                  struct.error, MemoryError)  # fmt: skip


class ImageError(ValueError):
    """An image that cannot be used. `reason` is one of `contract.REASONS`."""

    def __init__(self, reason: str, detail: str):
        assert reason in REASONS
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@contextmanager
def _pillow():
    """Turn Pillow's many exceptions into ImageError, and silence its warnings about odd metadata."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Image.DecompressionBombError as error:
        raise ImageError("image_too_large", str(error)) from None
    except ImageError:
        raise
    except _PILLOW_ERRORS as error:
        raise ImageError("image_broken", f"{type(error).__name__}: {error}") from None


def _open(data: bytes | None) -> tuple[Image.Image, bytes]:
    """The image, whose pixels are not loaded yet, and its bytes."""
    if not data:
        raise ImageError("image_missing", "the image has no bytes")
    with _pillow():
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        except Image.UnidentifiedImageError:  # its message contains an address in memory
            raise ImageError("image_unidentified", f"{len(data)} bytes starting {data[:12]!r}") from None
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ImageError("image_too_large", f"{width} × {height} pixels, more than {MAX_PIXELS}")
    if not _has_agreed_range(image):
        raise ImageError("image_mode", f"{image.format} of mode {image.mode} has no agreed range")
    return image, data


def _has_agreed_range(image: Image.Image) -> bool:
    """Whether black and white are known: not for floats, 32 bits, 12 bits in 16, or 16 bits with white as zero."""
    if isinstance(image, TiffImageFile) and image.mode in _SIXTEEN_BIT:
        tags = image.tag_v2
        layout = tags.get(_TIFF_PHOTOMETRIC), tags.get(_TIFF_BITS), tags.get(_TIFF_SAMPLE_FORMAT, (1,))
        return layout == (1, (16,), (1,))
    return image.mode != "F" and (image.mode != "I" or image.format == "PNG")


def _orientation(image: Image.Image, data: bytes) -> int:
    """The EXIF orientation (1–8) that `image` still has when Pillow has loaded it, 1 for metadata that do not parse.

    `read_size` and `decode` both ask before they load, so that they agree.
    """
    if image.format == "TIFF":
        return 1  # Pillow turns it and its size itself
    if image.format == "PNG" and not image.info.keys() & {"exif", *_PNG_TEXT_EXIF} and _has_late_exif(data):
        image.load()  # reads to the end
    try:
        value = Image.Image.getexif(image).get(_EXIF_ORIENTATION)  # PngImageFile's own would always load the pixels
    except _PILLOW_ERRORS:
        return 1
    return value if value in _UPRIGHT else 1


def _has_late_exif(png: bytes) -> bool:
    """Whether EXIF or XMP stands after a PNG's pixels. Pillow sees it only after loading them."""
    at, pixels_seen = 8, False  # the chunks follow a signature of 8 bytes
    while at + 8 <= len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        pixels_seen |= kind == b"IDAT"
        if pixels_seen and (kind == b"eXIf" or png.startswith(_PNG_TEXT_EXIF_BYTES, at + 8)):
            return True
        at += length + 12  # with the length, the name and the checksum
    return False


def read_size(data: bytes | None) -> Size:
    """The size that `decode` gives the image, from its header. Raises ImageError."""
    image, data = _open(data)
    width, height = image.size
    with _pillow():
        return Size(width, height) if _orientation(image, data) >= 5 else Size(height, width)


def decode(data: bytes | None) -> Image.Image:
    """The image as RGB, 8 bits a channel: first frame, EXIF applied, transparency on white, 16 bits rescaled.

    Raises ImageError.
    """
    image, data = _open(data)
    size = image.size
    with _pillow():
        orientation = _orientation(image, data)
        image.load()
        if image.size != size:
            raise ImageError("image_broken", f"its header says {size}, its body {image.size}")
        rgb = _to_rgb(image)
        return rgb.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else rgb


def prepare(data: bytes | None, verify: str = "header", max_side: int | None = None) -> tuple[Size, bytes | None]:
    """The size of an image as it is stored, and its new bytes, None where they stay `data`. Raises ImageError.

    `verify`: "header", or "decode" to prove the image by decoding it. `max_side`: a larger image is scaled down to this
    many pixels of the longer side, at most 65,500.
    """
    size = read_size(data)
    if max_side is not None and max(size) > max_side:
        return _scale_down(data, max_side)
    if verify == "decode":
        decode(data)
    return size, None


def _scale_down(data: bytes | None, max_side: int) -> tuple[Size, bytes]:
    image = decode(data)
    longer = max(image.size)
    width, height = (max(1, (2 * side * max_side + longer) // (2 * longer)) for side in image.size)  # rounded
    small = image.resize((width, height), Image.Resampling.LANCZOS)
    small.info = {}  # Pillow would write some of it: a colour profile, a comment
    is_png = _open(data)[0].format in _WITHOUT_LOSS and image.getcolors(_MAX_COLOURS_OF_PNG) is not None
    return Size(height, width), save(small, "png" if is_png else "jpeg", _JPEG_QUALITY)


def save(image: Image.Image, kind: str, jpeg_quality: int) -> bytes:
    """The image as the bytes of a file. `kind`: "png" or "jpeg"."""
    out = io.BytesIO()
    image.save(out, kind, **({"quality": jpeg_quality} if kind == "jpeg" else {}))
    return out.getvalue()


def _to_rgb(image: Image.Image) -> Image.Image:
    """Eight bits a channel on white. Holds at most two images of four bytes a pixel at a time."""
    if image.mode in _SIXTEEN_BIT or image.mode == "I":  # convert("RGB") would clip 16 bits to white
        pixels = np.asarray(image)
        grey = (pixels >> 8).clip(0, 255).astype(np.uint8)
        if "transparency" in image.info:
            grey[pixels == image.info["transparency"]] = 255
        return Image.fromarray(grey).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        rgba = image if image.mode == "RGBA" else image.convert("RGBA")
        white = Image.new("RGB", rgba.size, "white")
        white.paste(rgba, mask=rgba)
        return white
    return image.convert("RGB")
