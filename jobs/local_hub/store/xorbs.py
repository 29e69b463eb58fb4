"""Xorbs: runs of compressed chunks, in which Xet clients upload bytes (Xet protocol specification, "Xorb").

On the wire a xorb is chunk after chunk, each with a header of 8 bytes. Numbers are little-endian:

    u8 version = 0 | u24 packed bytes | u8 scheme | u24 unpacked bytes | payload

Scheme 0 is plain bytes, 1 an LZ4 frame, 2 an LZ4 frame of the bytes regrouped by position modulo 4. A footer that
starts with `XETBLOB` may follow. It repeats what the chunks say and is not stored.

A stored file has the chunks as they came, then the chunk table (a `TABLE` record per chunk), then the number of chunks
as u64. A range is found by the table (48 bytes per chunk, read once and cached), without a scan of chunk headers.
pyarrow decodes LZ4 frames: it is a dependency already and releases the GIL.
"""

import os
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from jobs.local_hub.errors import HubError

from .disk import Disk
from .xet_hashes import Leaf, chunk_hash, hash_text, merkle_root

__all__ = ["ChunkTable", "Xorbs", "unpack"]

HEADER_BYTES = 8
MAX_XORB_BYTES = 128 << 20  # twice what the specification allows
MAX_CACHED_TABLES = 4096
READ_BYTES = 4 << 20
TABLE = np.dtype([("hash", "V32"), ("offset", "<u4"), ("packed", "<u4"), ("unpacked", "<u4"), ("scheme", "<u4")])


def unpack(scheme: int, packed: bytes | memoryview, size: int) -> bytes | memoryview:
    """The bytes of one chunk; HubError 400 if the payload is not of that scheme, or has more bytes.

    pyarrow does not report an LZ4 frame of fewer than `size` bytes; the last bytes are then undefined. On upload the
    chunk's hash shows that.
    """
    if scheme == 0:
        data = packed
    elif scheme in (1, 2):
        try:
            data = pa.decompress(packed, decompressed_size=size, codec="lz4", asbytes=True)
        except OSError as error:
            raise HubError(400, f"a chunk is not an LZ4 frame: {error}") from error
    else:
        raise HubError(400, f"chunk compression scheme {scheme} is not known (0, 1 and 2 are)")
    if len(data) != size:
        raise HubError(400, f"a chunk unpacks to {len(data)} bytes, its header says {size}")
    if scheme < 2:
        return data
    out, start = np.empty(size, np.uint8), 0
    source = np.frombuffer(data, np.uint8)
    for position in range(4):
        target = out[position::4]
        target[:] = source[start : start + len(target)]
        start += len(target)
    return out.data


class ChunkTable:
    """Where the chunks of a xorb are and how many bytes they unpack to; `rows` are of TABLE."""

    def __init__(self, rows: np.ndarray):
        self.rows = rows
        self.ends = np.cumsum(rows["unpacked"], dtype=np.int64)  # unpacked bytes up to the end of each chunk

    def __len__(self) -> int:
        return len(self.rows)

    def _begin(self, chunk: int) -> int:
        return int(self.ends[chunk - 1]) if chunk else 0

    def unpacked(self, start: int, end: int) -> int:
        """Unpacked bytes of chunks [start, end)."""
        return self._begin(end) - self._begin(start)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The stored bytes [first, last) of chunks [start, end), headers included."""
        last = self.rows[end - 1]
        return int(self.rows[start]["offset"]), int(last["offset"]) + HEADER_BYTES + int(last["packed"])

    def cover(self, start: int, end: int, low: int, high: int) -> tuple[int, int, int]:
        """Which of the chunks [start, end) hold their bytes [low, high), and at which byte the first of them begins.

        Example: chunks of 10 bytes, start=2, end=6, low=15, high=25: chunks 3 and 4, byte 10: (3, 5, 10).
        """
        base = self._begin(start)
        first = int(np.searchsorted(self.ends, base + low, side="right"))
        last = int(np.searchsorted(self.ends, base + high, side="left")) + 1
        return first, min(last, end), self._begin(first) - base

    def leaves(self, start: int, end: int) -> list[Leaf]:
        """(hash, unpacked bytes) of chunks [start, end)."""
        rows = self.rows[start:end]
        return list(zip(map(bytes, rows["hash"]), rows["unpacked"].tolist(), strict=True))


class Xorbs:
    """The xorbs in `ROOT/xet/xorbs`, one file each."""

    def __init__(self, disk: Disk):
        self.disk = disk
        self.folder = disk.folder("xet/xorbs")
        self._cached = lru_cache(MAX_CACHED_TABLES)(self._load)

    def path(self, name: str) -> Path:
        return self.folder / name

    def put(self, name: str, read: Callable[[int], bytes]) -> bool:
        """Store an uploaded xorb and return whether it is new; `read` gives the next n bytes of the body.

        One chunk is in memory at a time. HubError 400 if it is malformed or hashes to another name; nothing is stored.
        """
        rows, leaves, offset = [], [], 0
        with self.disk.draft() as file:
            while header := read(HEADER_BYTES):
                if header[:7] == b"XETBLOB":
                    while read(1 << 20):
                        pass
                    break
                if len(header) < HEADER_BYTES or header[0] != 0:
                    raise HubError(400, f"xorb {name}: no chunk header at byte {offset}")
                packed, unpacked = (int.from_bytes(header[i : i + 3], "little") for i in (1, 5))
                payload = read(packed)
                if len(payload) < packed or not unpacked or offset + packed > MAX_XORB_BYTES:
                    raise HubError(400, f"xorb {name}: the chunk at byte {offset} is cut short, empty or too far")
                digest = chunk_hash(unpack(header[4], payload, unpacked))
                rows.append((digest, offset, packed, unpacked, header[4]))
                leaves.append((digest, unpacked))
                file.write(header)
                file.write(payload)
                offset += HEADER_BYTES + packed
            found = hash_text(merkle_root(leaves))
            if not rows or found != name:
                raise HubError(400, f"the chunks hash to xorb {found}, not {name}")
            if self.path(name).exists():
                return False
            file.write(np.array(rows, TABLE).tobytes() + struct.pack("<Q", len(rows)))
            self.disk.publish(file, self.path(name))
        return True

    def table(self, name: str) -> ChunkTable | None:
        """The chunk table of a xorb, or None when it is not stored."""
        try:
            return self._cached(name)
        except FileNotFoundError:
            return None

    def _load(self, name: str) -> ChunkTable:
        with open(self.path(name), "rb") as file:
            file.seek(-8, os.SEEK_END)
            size = struct.unpack("<Q", file.read())[0] * TABLE.itemsize
            file.seek(-8 - size, os.SEEK_END)
            return ChunkTable(np.frombuffer(file.read(size), TABLE))

    def read(self, name: str, start: int, end: int) -> Iterator[bytes | memoryview]:
        """Yield the unpacked chunks [start, end), reading about READ_BYTES of the file at a time."""
        table = self._cached(name)
        with open(self.path(name), "rb", buffering=0) as file:
            while start < end:
                first = int(table.rows[start]["offset"])
                stop = int(np.searchsorted(table.rows["offset"][start:end], first + READ_BYTES)) + start
                stop = max(start + 1, min(stop, end))
                low, high = table.span(start, stop)
                data = memoryview(os.pread(file.fileno(), high - low, low))
                for _, offset, packed, unpacked, scheme in table.rows[start:stop].tolist():
                    at = offset - low + HEADER_BYTES
                    yield unpack(scheme, data[at : at + packed], unpacked)
                start = stop
