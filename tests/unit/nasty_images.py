"""Image files as they turn up in scraped datasets, each with what must become of it.

kept       `decode` returns the promised size, and where a colour is given, that colour in a corner
at header  `read_size` and `decode` both refuse, with the reason
at body    the header promises a size, `decode` refuses: what a header-only check cannot see
"""

import io
import struct
import zlib
from typing import NamedTuple

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 24, 32
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


class Nasty(NamedTuple):
    """A file and its outcome. `size` is (height, width) as kept, or as the header of a broken body promises."""

    data: bytes
    size: tuple[int, int] | None = None
    reason: str | None = None
    corner: tuple[int, int, int] | None = None  # RGB at the top left, where the format keeps it exactly
    tolerance: int = 0


def kept(data: bytes, height: int = HEIGHT, width: int = WIDTH, corner=None, tolerance: int = 0) -> Nasty:
    return Nasty(data, (height, width), None, corner, tolerance)


def at_header(reason: str, data: bytes) -> Nasty:
    return Nasty(data, None, reason)


def at_body(data: bytes, height: int = HEIGHT, width: int = WIDTH, reason: str = "image_broken") -> Nasty:
    return Nasty(data, (height, width), reason)


def save(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def picture() -> Image.Image:
    """32 × 24 pixels in four fields: red and green above, blue and white below. No two corners are alike."""
    pixels = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    pixels[:12, :16], pixels[:12, 16:], pixels[12:, :16], pixels[12:, 16:] = RED, GREEN, BLUE, WHITE
    return Image.fromarray(pixels)


def exif(orientation) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(
    width: int, height: int, bits: int, colour: int, rows: bytes, *, before: bytes = b"", after: bytes = b""
) -> bytes:
    """A PNG put together by hand: `rows` with their filter bytes, other chunks before and after the pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(rows, 9))
    return b"\x89PNG\r\n\x1a\n" + header + before + pixels + after + chunk(b"IEND", b"")


def grey_png(before: bytes = b"", after: bytes = b"") -> bytes:
    """Two rows of four grey pixels, for metadata around them."""
    return png(4, 2, 8, 0, (b"\0" + bytes((10, 20, 30, 40))) * 2, before=before, after=after)


def bmp_header(width: int, height: int) -> bytes:
    return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)


def grey_tiff(samples: bytes, bits: int, **tags: int) -> bytes:
    """One row of one or more grey samples as an uncompressed little-endian TIFF."""
    values = {"width": 256, "height": 257, "bits": 258, "compression": 259, "photometric": 262, "offset": 273,
              "samples": 277, "rows": 278, "bytes": 279, "format": 339}  # fmt: skip
    width = len(samples) * 8 // bits
    fields = {"width": width, "height": 1, "bits": bits, "compression": 1, "photometric": 1, "offset": 8}
    fields |= {"samples": 1, "rows": 1, "bytes": len(samples), "format": 1} | tags
    entries = b"".join(struct.pack("<HHII", values[name], 4, 1, fields[name]) for name in values)
    return (
        b"II*\0" + struct.pack("<I", 8 + len(samples)) + samples + struct.pack("<H", len(fields)) + entries + b"\0" * 4
    )


def files() -> dict[str, Nasty]:
    """Every file by name. Made anew each time, from nothing but the code below."""
    return {**_no_image(), **_broken(), **_bombs(), **_shapes(), **_colours(), **_turned(), **_many_frames(), **_odd()}


def _no_image() -> dict[str, Nasty]:
    one_pixel = Image.new("RGB", (16, 16), RED)
    return {
        "no bytes": at_header("image_missing", b""),
        "one byte": at_header("image_unidentified", b"\x89"),
        "HTML of an error page": at_header("image_unidentified", b"<!DOCTYPE html><html><h1>404</h1></html>"),
        "SVG": at_header("image_unidentified", b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'),
        "noise": at_header("image_unidentified", np.random.default_rng(0).bytes(4096)),
        "PDF": at_header("image_unidentified", b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n"),
        "EPS": at_header("image_unidentified", save(one_pixel, "EPS")),
        "ICO": at_header("image_unidentified", save(one_pixel, "ICO")),
        "ICNS": at_header("image_unidentified", save(one_pixel, "ICNS")),
        "PSD header": at_header("image_unidentified", b"8BPS\0\1" + b"\0" * 6 + struct.pack(">HIIHH", 3, 9, 9, 8, 3)),
        "HEIC brand": at_header("image_unidentified", b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + b"\0" * 64),
        "GIF of no width": at_header("image_unidentified", b"GIF89a\0\0\0\0\0\0\0;"),
    }


def _broken() -> dict[str, Nasty]:
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8))
    jpeg, plain = save(noise, "JPEG", quality=95), save(noise, "PNG")
    flipped = bytearray(plain)
    flipped[len(plain) // 2] ^= 0xFF
    return {
        "JPEG cut in its header": at_header("image_broken", jpeg[:150]),
        "JPEG cut in half": at_body(jpeg[: len(jpeg) // 2]),
        "JPEG without its last byte": at_body(jpeg[: len(jpeg) - 2]),
        "PNG cut in its signature": at_header("image_unidentified", plain[:5]),
        "PNG cut in its header": at_header("image_broken", plain[:20]),
        "PNG cut in half": at_body(plain[: len(plain) // 2]),
        "PNG with a flipped bit": at_body(bytes(flipped)),
        "PNG of no pixels": at_body(png(WIDTH, HEIGHT, 8, 2, b"")),
        "GIF cut in half": at_body(save(noise.quantize(256), "GIF")[:1100]),
        "WebP cut in half": at_header("image_broken", save(noise, "WEBP")[:200]),
        "TIFF cut in half": at_body(grey_tiff(b"\0" * 8, 8, bytes=4000, width=2000), 1, 2000),
        "BMP cut in half": at_body(save(noise, "BMP")[:1000]),
        "BMP of a header alone": at_body(bmp_header(WIDTH, HEIGHT)),
        "AVIF cut in half": at_header("image_unidentified", save(noise, "AVIF")[:200]),
        "JPEG 2000 cut in half": at_body(save(noise, "JPEG2000")[:1000]),
        "JPEG and more behind it": kept(jpeg + b"\0" * 999),
    }


def _bombs() -> dict[str, Nasty]:
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"A" * 80_000_000, 9))
    wide_gif = bytearray(save(Image.new("P", (10, 10)), "GIF"))
    frame = wide_gif.index(b",")
    wide_gif[frame + 5 : frame + 9] = struct.pack("<HH", 65535, 65535)
    return {
        "PNG that claims 65535 × 65535": at_header("image_too_large", png(65535, 65535, 8, 2, b"")),
        "PNG of 30000 × 30000 bits": at_header("image_too_large", png(30000, 30000, 1, 0, bytes(3751 * 30000))),
        "PNG of 12000 × 8000 bits": at_header("image_too_large", png(12000, 8000, 1, 0, bytes(1501 * 8000))),
        "BMP that claims 60000 × 60000": at_header("image_too_large", bmp_header(60000, 60000)),
        "plain PPM, which can take seconds": at_header("image_unidentified", b"P3\n1 2\n255\n255 0 0  0 0 0\n"),
        "GIF whose frame is 65535 × 65535": at_header("image_too_large", bytes(wide_gif)),
        "80 MB of text before the pixels": at_header("image_broken", grey_png(before=text)),
        "80 MB of text behind the pixels": at_body(grey_png(after=text), 2, 4),
        "largest that is kept": kept(png(10000, 5000, 1, 0, bytes(1251 * 5000)), 5000, 10000, (0, 0, 0)),
    }


def _shapes() -> dict[str, Nasty]:
    return {
        "one pixel": kept(save(Image.new("RGB", (1, 1), RED), "PNG"), 1, 1, RED),
        "1 high, 5000 wide": kept(save(Image.new("RGB", (5000, 1), RED), "PNG"), 1, 5000, RED),
        "5000 high, 1 wide": kept(save(Image.new("RGB", (1, 5000), RED), "PNG"), 5000, 1, RED),
        "3 high, as if channels came first": kept(save(Image.new("RGB", (300, 3), RED), "PNG"), 3, 300, RED),
    }


def _colours() -> dict[str, Nasty]:
    base = picture()
    transparent = base.copy()
    transparent.putalpha(Image.fromarray(np.pad(np.full((12, 16), 255, np.uint8), ((12, 0), (16, 0)))))
    half = Image.new("RGBA", (WIDTH, HEIGHT), (*RED, 128))  # 255 × 128/255 and 127/255 of white
    palette = Image.new("P", (WIDTH, HEIGHT))
    palette.putpalette([*RED, *GREEN])
    sixteen = Image.fromarray(np.full((HEIGHT, WIDTH), 0x8123, np.uint16))
    grey, hidden = (0x81, 0x81, 0x81), chunk(b"tRNS", b"\x81\x23")
    return {
        "grey JPEG": kept(save(base.convert("L"), "JPEG")),
        "CMYK JPEG": kept(save(base.convert("CMYK"), "JPEG", quality=100), corner=RED, tolerance=20),
        "CMYK TIFF": kept(save(base.convert("CMYK"), "TIFF"), corner=RED),
        "YCbCr TIFF": kept(save(base.convert("YCbCr"), "TIFF"), corner=RED, tolerance=3),
        "black and white": kept(save(base.convert("1"), "PNG")),
        "grey and alpha": kept(save(Image.new("LA", (WIDTH, HEIGHT), (9, 0)), "PNG"), corner=WHITE),
        "transparent corner": kept(save(transparent, "PNG"), corner=WHITE),
        "half transparent": kept(save(half, "PNG"), corner=(255, 127, 127)),
        "transparent WebP": kept(save(transparent, "WEBP", lossless=True), corner=WHITE),
        "transparent AVIF": kept(save(transparent, "AVIF"), corner=WHITE, tolerance=3),
        "transparent palette index": kept(save(palette, "PNG", transparency=0), corner=WHITE),
        "palette with an alpha each": kept(save(palette, "PNG", transparency=b"\x80\xff"), corner=(255, 127, 127)),
        "transparent GIF": kept(save(palette, "GIF", transparency=0), corner=WHITE),
        "opaque palette": kept(save(palette, "PNG"), corner=RED),
        "transparent colour": kept(
            png(1, 1, 8, 2, b"\0" + bytes(RED), before=chunk(b"tRNS", b"\0\xff\0\0\0\0")), 1, 1, WHITE
        ),
        "16-bit grey PNG": kept(save(sixteen, "PNG"), corner=grey),
        "16-bit grey PNG, transparent": kept(png(1, 1, 16, 0, b"\0\x81\x23", before=hidden), 1, 1, WHITE),
        "16-bit colour PNG": kept(png(1, 1, 16, 2, b"\0\xff\x12\0\x34\x80\x56"), 1, 1, (255, 0, 128)),
        "16-bit grey TIFF": kept(save(sixteen, "TIFF"), corner=grey),
        "16-bit grey JPEG 2000": kept(save(sixteen, "JPEG2000"), corner=grey),
        "16-bit TIFF, white is zero": at_header("image_mode", grey_tiff(b"\x00\xf0", 16, photometric=0)),
        "12-bit TIFF": at_header("image_mode", grey_tiff(b"\x12\x3f\xff", 12)),
        "signed 16-bit TIFF": at_header("image_mode", grey_tiff(b"\x00\x70", 16, format=2)),
        "32-bit TIFF": at_header("image_mode", save(Image.new("I", (WIDTH, HEIGHT), 1 << 20), "TIFF")),
        "float TIFF": at_header("image_mode", save(Image.new("F", (WIDTH, HEIGHT), 0.5), "TIFF")),
        "16-bit PGM": at_header("image_unidentified", b"P5 1 1 65535\n\x12\x34"),
        "PFM": at_header("image_unidentified", b"Pf\n1 1\n-1.0\n\0\0\0\0"),
    }


def _turned() -> dict[str, Nasty]:
    """EXIF orientations: what is stored, turned as each asks, has this colour at the top left."""
    base = picture()
    corners = {1: RED, 2: GREEN, 3: WHITE, 4: BLUE, 5: RED, 6: BLUE, 7: WHITE, 8: GREEN}
    found = {}
    for orientation, corner in corners.items():
        size = (WIDTH, HEIGHT) if orientation >= 5 else (HEIGHT, WIDTH)
        for kind, options in {"PNG": {}, "TIFF": {}, "WEBP": {"lossless": True}}.items():
            data = save(base, kind, exif=exif(orientation), **options)
            found[f"{kind} of orientation {orientation}"] = kept(data, *size, corner)
        data = save(base, "JPEG", quality=100, subsampling=0, exif=exif(orientation))
        found[f"JPEG of orientation {orientation}"] = kept(data, *size, corner, 5)
    found["AVIF of orientation 6"] = kept(save(base, "AVIF", exif=exif(6)), WIDTH, HEIGHT, BLUE, 12)
    tags = exif(6).tobytes().removeprefix(b"Exif\0\0")
    text = b"Raw profile type exif\0\0" + zlib.compress(
        b"\nexif\n  %d\n%s\n" % (len(tags), (b"Exif\0\0" + tags).hex().encode())
    )
    bad_text = chunk(b"tEXt", b"Raw profile type exif\0\nexif\n 3\nzz\n")
    places = {"EXIF": chunk(b"eXIf", tags), "XMP": chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP),
              "packed XMP": chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(XMP)),
              "EXIF as text": chunk(b"zTXt", text)}  # fmt: skip
    for name, data in places.items():
        found[f"PNG with {name} before its pixels"] = kept(grey_png(before=data), 4, 2, (10, 10, 10))
        found[f"PNG with {name} behind its pixels"] = kept(grey_png(after=data), 4, 2, (10, 10, 10))
    return found | {
        "JPEG with XMP alone": kept(save(base, "JPEG", xmp=XMP), WIDTH, HEIGHT),
        "orientation 0": kept(save(base, "PNG", exif=exif(0)), corner=RED),
        "orientation 99": kept(save(base, "JPEG", exif=exif(99))),
        "EXIF of garbage": kept(save(base, "JPEG", exif=b"Exif\0\0garbage"), corner=RED, tolerance=12),
        "EXIF as text that is not hex": kept(grey_png(before=bad_text), 2, 4, (10, 10, 10)),
        "text behind the pixels": kept(grey_png(after=chunk(b"tEXt", b"date:create\x002024")), 2, 4, (10, 10, 10)),
    }


def _many_frames() -> dict[str, Nasty]:
    first, second = picture(), Image.new("RGB", (WIDTH, HEIGHT), (0, 0, 0))
    frames = {"save_all": True, "append_images": [second]}
    return {
        "animated GIF": kept(save(first, "GIF", **frames), corner=RED),
        "animated PNG": kept(save(first, "PNG", **frames), corner=RED),
        "animated WebP": kept(save(first, "WEBP", lossless=True, **frames), corner=RED),
        "animated AVIF": kept(save(first, "AVIF", **frames), corner=RED, tolerance=12),
        "TIFF of two pages": kept(save(first, "TIFF", **frames), corner=RED),
        "MPO": kept(save(first, "MPO", **frames), corner=RED, tolerance=12),
        "TIFF of pages of two sizes": kept(save(first, "TIFF", save_all=True, append_images=[second.resize((99, 9))])),
    }


def _odd() -> dict[str, Nasty]:
    base = picture()
    return {
        "progressive JPEG": kept(save(base, "JPEG", progressive=True), corner=RED, tolerance=12),
        "JPEG 2000": kept(save(base, "JPEG2000"), corner=RED),
        "JPEG 2000 codestream": kept(save(base, "JPEG2000", no_jp2=True), corner=RED),
        "BMP": kept(save(base, "BMP"), corner=RED),
        "bad colour profile": kept(save(base, "PNG", icc_profile=b"junk" * 10), corner=RED),
        "interlaced GIF": kept(save(base, "GIF", interlace=1), corner=RED),
        "TIFF with LZW": kept(save(base, "TIFF", compression="tiff_lzw"), corner=RED),
        "fax TIFF": kept(save(base.convert("1"), "TIFF", compression="group4")),
    }
