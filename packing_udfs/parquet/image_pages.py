"""Images as slices of a row group's bytes, without a copy.

A Parquet column chunk consists of pages: a header in Thrift's compact protocol, then levels, then values. Image bytes
are written PLAIN and uncompressed (`contract.writer_options`), so each image is there as it is, after its length:

    header | length, repetition levels | length, definition levels | length, image | length, image | …

pyarrow copies every image once or twice into an array, which was half of the processor time of reading packs. Walking
the pages costs some 10 µs per page. Rejected: pyarrow's binary views, which copy too.
Format: github.com/apache/parquet-format, README.md and parquet.thrift.
"""

from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["find_images"]

_TYPE, _NUM_BYTES, _CRC = 1, 3, 4  # fields of PageHeader
_BOOLS, _INTS, _BINARY, _STRUCT = (1, 2), (3, 4, 5, 6), 8, 12  # types of Thrift's compact protocol


def find_images(data: pa.Buffer, offset: int, chunk: pq.ColumnChunkMetaData, *, verify: bool) -> list[pa.Buffer] | None:
    """The values of a column chunk that are not null, as slices of `data`, which starts at `offset` of the file.

    None if another writer stored the chunk in another way. Raises OSError for damaged bytes; `verify` also checks
    every page's checksum.
    """
    if chunk.compression != "UNCOMPRESSED" or not {"PLAIN"} <= {*chunk.encodings} <= {"PLAIN", "RLE"}:
        return None
    view, images = memoryview(data).cast("B"), []
    at = chunk.data_page_offset - offset
    chunk_end = at + chunk.total_compressed_size
    while at < chunk_end:
        header, at = _page_header(view, at)
        end = at + header.get(_NUM_BYTES, -1)
        if not at <= end <= chunk_end:
            raise OSError("a page ends outside its column")
        if verify and _CRC in header and crc32(view[at:end]) != header[_CRC] & 0xFFFFFFFF:
            raise OSError("a page of images has another CRC than was written")
        if header.get(_TYPE) != 0:  # DATA_PAGE; version 2 keeps its levels elsewhere
            return None
        for _ in range(2):  # levels: the other columns say to which pack an image belongs
            at += 4 + int.from_bytes(view[at : at + 4], "little")
        while at < end:
            length = int.from_bytes(view[at : at + 4], "little")
            at += 4 + length
            if at <= end:
                images.append(data.slice(at - length, length))
        if at != end:
            raise OSError("an image ends outside its page")
    return images


def _page_header(view: memoryview, at: int) -> tuple[dict[int, int], int]:
    """The integers of a PageHeader by field, and where the header ends. Nested fields are skipped."""
    fields, path = {}, [0]
    try:
        while path:
            head = view[at]
            at += 1
            path[-1] += head >> 4
            kind = head & 15
            if head == 0:
                path.pop()
            elif kind == _STRUCT:
                path.append(0)
            elif kind in _INTS or kind == _BINARY:
                number = shift = 0
                while True:
                    number |= (view[at] & 127) << shift
                    at, shift = at + 1, shift + 7
                    if view[at - 1] < 128:
                        break
                    if shift > 63:
                        raise OSError("a page's header is damaged")
                if kind == _BINARY:
                    at += number
                elif len(path) == 1:
                    fields[path[0]] = (number >> 1) ^ -(number & 1)
            elif kind not in _BOOLS:
                raise OSError("a page's header is damaged")
    except IndexError:
        raise OSError("a page's header is damaged") from None
    return fields, at
