"""Images found in a column chunk's bytes, against what pyarrow reads of it."""

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing_udfs import contract
from packing_udfs.parquet.image_pages import find_images
from packing_udfs.parquet.read import read_row_group

LISTS = st.lists(st.lists(st.binary(max_size=300), max_size=4), min_size=1, max_size=20)


def written(images: list[list[bytes | None]], **options):
    """(the file's bytes, the metadata of its column of image bytes)."""
    table = pa.table({"images": pa.array([[{"bytes": b} for b in of_pack] for of_pack in images], pa.list_(IMAGE))})
    buffer = io.BytesIO()
    plain = {"use_dictionary": False, "column_encoding": {BYTES: "PLAIN"}, "compression": "none"}
    pq.write_table(table, buffer, **{**plain, "write_page_checksum": True, **options})
    return buffer.getvalue(), pq.read_metadata(buffer).row_group(0).column(0)


IMAGE = pa.struct([("bytes", pa.binary())])
BYTES = "images.list.element.bytes"


@settings(deadline=None, max_examples=100)
@given(LISTS, st.sampled_from([1, 100, 1 << 20]), st.booleans())
def test_all_images_are_found_in_pages_of_any_size(images, page_size, statistics):
    data, chunk = written(images, data_page_size=page_size, write_batch_size=1, write_statistics=statistics)
    found = find_images(pa.py_buffer(data), 0, chunk, verify=True)
    assert [bytes(image) for image in found] == [image for of_pack in images for image in of_pack]


def test_images_are_slices_of_the_bytes():
    data, chunk = written([[b"one", b"two"], [], [b"three"]])
    start = 4  # a row group's bytes, without what is before them in the file
    buffer = pa.py_buffer(data[start:])
    for image in find_images(buffer, start, chunk, verify=True):
        assert buffer.address <= image.address < buffer.address + buffer.size


def test_nulls_are_left_out():
    data, chunk = written([[b"one", None], [None, b"two"]])
    assert [bytes(image) for image in find_images(pa.py_buffer(data), 0, chunk, verify=True)] == [b"one", b"two"]


@pytest.mark.parametrize(
    "options",
    [{"compression": "zstd"}, {"use_dictionary": True, "column_encoding": None}, {"data_page_version": "2.0"}],
)
def test_what_is_stored_in_another_way_is_left_to_pyarrow(options):
    data, chunk = written([[b"one", b"one"], [b"three"]], **options)
    assert find_images(pa.py_buffer(data), 0, chunk, verify=True) is None


@pytest.mark.parametrize("verify", [False, True])
def test_damaged_bytes_never_give_another_error(verify):
    images = [[bytes([i]) * 50, b"x" * i] for i in range(30)]
    data, chunk = written(images, data_page_size=200, write_batch_size=1)
    first, stored = chunk.data_page_offset, [image for of_pack in images for image in of_pack]
    draw, num_found, num_refused = random.Random(0), 0, 0
    for _ in range(2000):
        damaged = bytearray(data)
        damaged[draw.randrange(first, first + chunk.total_compressed_size)] ^= 1 << draw.randrange(8)
        try:
            found = find_images(pa.py_buffer(bytes(damaged)), 0, chunk, verify=verify)
        except OSError:
            num_refused += 1
            continue
        num_found += 1
        if verify and found is not None:  # a header's own bytes have no checksum, but what they lead to has
            assert [bytes(image) for image in found] == stored
    assert num_refused > (1000 if verify else 100)
    assert num_found > 10


def test_a_row_group_of_another_writer_gives_the_same_images(packed):
    """As `datasets` writes packs: compressed."""
    table = pq.read_table(packed / "data/train/00000.parquet").cast(contract.PACK_SCHEMA)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="snappy")
    metadata = pq.read_metadata(buffer)
    row = {"file": "f", "row_group": 0, "offset": 0, "file_bytes": len(buffer.getvalue()), "num_rows": table.num_rows}
    _, images = read_row_group(pa.py_buffer(buffer.getvalue()), row, metadata)
    assert images == [image["bytes"] for of_pack in table["images"].to_pylist() for image in of_pack]
    assert images
