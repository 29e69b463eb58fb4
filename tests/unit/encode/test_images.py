"""`read_size` and `decode`: one outcome for each nasty file, and agreement on anything at all."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from packing_udfs.contract import REASONS
from packing_udfs.encode.images import FORMATS, MAX_PIXELS, ImageError, decode, prepare, read_size
from tests.unit import nasty_images

FILES = nasty_images.files()


@pytest.mark.parametrize("name", FILES)
def test_nasty_file(name):
    """The whole promise: what is kept decodes to its size, what is refused has its reason, wherever it is seen."""
    file = FILES[name]
    if file.size is None:
        for use in (read_size, decode):
            with pytest.raises(ImageError) as refused:
                use(file.data)
            assert refused.value.reason == file.reason
        return
    assert read_size(file.data) == file.size
    if file.reason is not None:
        with pytest.raises(ImageError) as refused:
            decode(file.data)
        assert refused.value.reason == file.reason
        return
    image = decode(file.data)
    assert (image.height, image.width) == file.size
    assert image.mode == "RGB"
    if file.corner is not None:
        off = max(abs(a - b) for a, b in zip(image.getpixel((0, 0)), file.corner, strict=True))
        assert off <= file.tolerance, f"{image.getpixel((0, 0))} for {file.corner}"


def outcome(use, data: bytes):
    """What `use` returns, or the ImageError it raises."""
    try:
        return use(data)
    except ImageError as error:
        return error


def test_the_files_meet_every_outcome():
    reasons = {file.reason for file in FILES.values()}
    assert reasons == {None, *(reason for reason in REASONS if reason.startswith("image_"))} - {
        "image_shape",
        "image_count",
    }
    assert any(file.size and file.reason for file in FILES.values())


def test_null_is_missing():
    with pytest.raises(ImageError, match=r"^image_missing: the image has no bytes$"):
        read_size(None)


def test_reason_has_to_be_one_of_the_contract():
    with pytest.raises(AssertionError):
        ImageError("image_ugly", "")


def test_the_cap_is_on_the_product_of_the_sides():
    side = 5000
    over = nasty_images.bmp_header(MAX_PIXELS // side + 1, side)
    with pytest.raises(ImageError, match=f"10001 × 5000 pixels, more than {MAX_PIXELS}"):
        read_size(over)
    assert read_size(nasty_images.bmp_header(MAX_PIXELS // side, side)) == (side, 10_000)


def test_refusals_name_no_address_in_memory():
    """A quarantine row has the detail, and equal runs have equal bytes."""
    outcomes = [outcome(use, file.data) for file in FILES.values() for use in (read_size, decode)]
    details = [found.detail for found in outcomes if isinstance(found, ImageError)]
    assert len(details) > 50
    assert not [detail for detail in details if "object at" in detail]


def test_pixels_are_not_loaded_for_the_size(monkeypatch):
    """Headers only, but for a PNG whose EXIF stands behind its pixels."""
    loaded, load = [], PngImageFile.load
    monkeypatch.setattr(PngImageFile, "load", lambda self: (loaded.append(True), load(self))[1])
    pngs = [name for name in FILES if FILES[name].reason is None and FILES[name].data.startswith(b"\x89PNG")]
    with_pixels = set()
    for name in pngs:
        loaded.clear()
        read_size(FILES[name].data)
        with_pixels |= {name} if loaded else set()
    assert with_pixels == {
        f"PNG with {what} behind its pixels" for what in ("EXIF", "EXIF as text", "XMP", "packed XMP")
    }
    assert len(pngs) > 25


# `prepare`: what is stored


def test_bytes_are_left_alone_unless_asked():
    kept = [file for file in FILES.values() if file.reason is None]
    assert len(kept) > 60
    for file in kept:
        assert prepare(file.data) == (file.size, None)
    for file in FILES.values():
        if file.size is None:
            with pytest.raises(ImageError, match=file.reason):
                prepare(file.data)


def test_a_header_is_no_proof_and_a_decode_is():
    bodies = {name: file for name, file in FILES.items() if file.size and file.reason}
    assert "JPEG cut in half" in bodies
    for file in bodies.values():
        assert prepare(file.data, "header") == (file.size, None)
        with pytest.raises(ImageError) as refused:
            prepare(file.data, "decode")
        assert refused.value.reason == file.reason


def photo(height: int, width: int) -> Image.Image:
    """Smooth with a little noise, and of more than 4,096 colours."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).integers(0, 8, (height, width, 3))
    return Image.fromarray((np.stack([x, y, x + y], 2) * 120 // (height + width) + noise).astype(np.uint8))


def chart(height: int, width: int) -> Image.Image:
    """Four coloured fields."""
    return nasty_images.picture().resize((width, height), Image.Resampling.NEAREST)


SCALED = {
    # how it is stored, of what size (height, width), max_side: format and size after
    "photo as JPEG": (photo(300, 400), "JPEG", {}, 100, "JPEG", (75, 100)),
    "photo as PNG": (photo(300, 400), "PNG", {}, 100, "JPEG", (75, 100)),
    "chart as PNG": (chart(300, 400), "PNG", {}, 100, "PNG", (75, 100)),
    "chart as GIF": (chart(300, 400), "GIF", {}, 100, "PNG", (75, 100)),
    "chart as JPEG": (chart(300, 400), "JPEG", {}, 100, "JPEG", (75, 100)),
    "grey photo as JPEG": (photo(300, 400).convert("L"), "JPEG", {}, 100, "JPEG", (75, 100)),
    "turned by EXIF": (photo(300, 400), "JPEG", {"exif": nasty_images.exif(6)}, 100, "JPEG", (100, 75)),
    "no whole number": (chart(333, 500), "PNG", {}, 100, "PNG", (67, 100)),  # 66.6
    "half": (chart(25, 200), "PNG", {}, 100, "PNG", (13, 100)),  # 12.5
    "a line": (chart(1, 5000), "PNG", {}, 100, "PNG", (1, 100)),
    "one more than allowed": (chart(101, 50), "PNG", {}, 100, "PNG", (100, 50)),  # 49.5
}


@pytest.mark.parametrize("name", SCALED)
def test_scaled_down(name):
    """To the size promised, upright, the same every time, and with nothing of the file but its pixels."""
    image, kind, options, max_side, stored_kind, size = SCALED[name]
    profile = {"icc_profile": b"profile" * 20} if kind in ("JPEG", "PNG") else {}
    data = nasty_images.save(image, kind, comment=b"no comment", **options, **profile)
    promised, stored = prepare(data, max_side=max_side)
    assert promised == size == read_size(stored)
    decoded = decode(stored)
    assert (decoded.height, decoded.width) == size
    with Image.open(io.BytesIO(stored)) as opened:
        assert opened.format == stored_kind
        assert not opened.getexif()
        assert opened.info.keys() <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
    assert prepare(data, max_side=max_side) == (promised, stored)
    assert prepare(stored, "decode", max_side) == (size, None)  # nothing is left to do
    shown = decode(data).resize(decoded.size, Image.Resampling.BOX)  # another filter: about the same picture
    assert np.abs(np.asarray(shown, int) - np.asarray(decoded, int)).mean() < 6


@pytest.mark.parametrize("verify", ["header", "decode"])
def test_as_large_as_allowed_is_left_alone(verify):
    assert prepare(nasty_images.save(chart(100, 50), "PNG"), verify, 100) == ((100, 50), None)


def test_a_quality_of_92():
    """The tables of quantisation are those that Pillow writes for it."""
    _, stored = prepare(nasty_images.save(photo(300, 400), "PNG"), max_side=100)
    expected = Image.open(io.BytesIO(nasty_images.save(photo(9, 9), "JPEG", quality=92)))
    assert Image.open(io.BytesIO(stored)).quantization == expected.quantization


def test_what_has_to_be_scaled_has_to_decode():
    data = nasty_images.save(photo(300, 400), "JPEG")
    with pytest.raises(ImageError, match="image_broken"):
        prepare(data[: len(data) // 2], max_side=100)


# VmHWM is the process's own; ru_maxrss starts at what its parent's was.
_PEAK = """
import pathlib, re, sys
from packing_udfs.encode.images import decode
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) // 1024
data, before = pathlib.Path(sys.argv[1]).read_bytes(), peak()
decode(data)
print(before, peak())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(("kind", "mode"), [("PNG", "LA"), ("WEBP", "RGBA")])
def test_the_largest_image_takes_less_than_a_gigabyte(kind, mode, tmp_path):
    """The two that take most: grey with alpha is kept at four bytes a pixel, and WebP decodes into frames."""
    options = {"lossless": True, "quality": 0, "method": 0} if kind == "WEBP" else {}
    image = Image.new(mode, (10_000, MAX_PIXELS // 10_000))
    (tmp_path / "image").write_bytes(nasty_images.save(image, kind, exif=nasty_images.exif(6), **options))
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(tmp_path / "image")], capture_output=True, text=True, check=True
    )
    before, peak = map(int, done.stdout.split())
    assert (
        before + MAX_PIXELS * 4 // 2**20 < peak < 1024
    )  # MiB; it was decoded, to at least one image of 4 bytes a pixel


SEEDS = {
    name: FILES[name].data
    for name in FILES
    if FILES[name].reason is None and len(FILES[name].data) < 20_000 and not name.startswith(("PNG of o", "TIFF of o"))
}


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_bytes_are_refused_or_agreed_on(data):
    """Cut and changed files: nothing but ImageError comes out, and both halves of the promise agree on the size."""
    original = SEEDS[data.draw(st.sampled_from(sorted(SEEDS)))]
    changed = bytearray(original)
    place = st.one_of(st.integers(0, min(64, len(original) - 1)), st.integers(0, len(original) - 1))
    for at, value in data.draw(st.lists(st.tuples(place, st.integers(0, 255)), max_size=4)):
        changed[at] = value
    changed = bytes(changed[: data.draw(st.one_of(st.just(len(changed)), st.integers(0, len(changed))))])
    promised, image = outcome(read_size, changed), outcome(decode, changed)
    if isinstance(promised, ImageError):
        assert isinstance(image, ImageError)
        assert image.reason == promised.reason
    elif not isinstance(image, ImageError):
        assert (image.height, image.width, image.mode) == (*promised, "RGB")


def test_the_seeds_of_the_changed_files_are_of_every_format():
    formats = {Image.open(io.BytesIO(data)).format for data in SEEDS.values()}
    assert formats == {*FORMATS, "MPO"}
