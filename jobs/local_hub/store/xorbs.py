"""Xorbs: runs of compressed chunks, the unit in which Xet clients upload bytes.

Wire format (Xet protocol specification, "Xorb"): chunk after chunk, each a header of 8 bytes and its payload,
all numbers little-endian:

    u8 version = 0 | u24 packed bytes | u8 scheme | u24 unpacked bytes | payload

Schemes: 0 as is; 1 an LZ4 frame; 2 an LZ4 frame of the bytes regrouped by position modulo 4. An optional footer
starts with `XETBLOB`; it repeats what the chunks say and is not kept.

A chunk's hash is blake3 keyed with CHUNK_KEY over its unpacked bytes. A xorb's hash is the root of a tree over
(hash, unpacked bytes) of its chunks: groups of 2 to 9 neighbours, cut after the third or later member whose hash
is divisible by 4, become one node, level by level, until one is left. A file's hash is the same root over the
chunks of the file, hashed once more with a key of zeros. All of it is recomputed from the body on upload.

Stored format: the chunks as they came, then the *chunk table* (a `TABLE` record per chunk), then the number of
chunks as u64. Reading a range seeks by the table: one read of 48 bytes a chunk, once, then cached; chunk headers
are never scanned. LZ4 frames are decoded by pyarrow, which is a dependency already and releases the GIL.
"""

import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from blake3 import blake3

from .disk import Disk
from .errors import HubError

CHUNK_KEY = bytes.fromhex("6697f5775b9550de3135cbaca597181c9de421109beb2b58b4d0b04b93adf229")
NODE_KEY = bytes.fromhex("017ec5c7a5472996fd946666b48a02e65ddd536f37c76dd2f86352e64a53713f")
RANGE_KEY = bytes.fromhex("7f1857d6ce56ed66127ff913e7a5c3f3a4cd26d5b5db49e64124987f28fb94c3")
HEADER_BYTES = 8
MAX_XORB_BYTES = 128 << 20  # twice what the specification allows
MAX_CACHED_TABLES = 4096
READ_BYTES = 4 << 20
TABLE = np.dtype([("hash", "V32"), ("offset", "<u4"), ("packed", "<u4"), ("unpacked", "<u4"), ("scheme", "<u4")])


def hash_text(raw: bytes) -> str:
    """Xet's text form of a hash: four little-endian u64 in hexadecimal."""
    return b"".join(raw[i : i + 8][::-1] for i in range(0, 32, 8)).hex()


def hash_bytes(text: str) -> bytes:
    """The 32 bytes of a hash in text form."""
    raw = bytes.fromhex(text)
    return b"".join(raw[i : i + 8][::-1] for i in range(0, 32, 8))


def merkle_root(leaves: list[tuple[bytes, int]]) -> bytes:
    """The aggregated hash of (hash, unpacked bytes) leaves; 32 zero bytes for none."""
    nodes = leaves
    while len(nodes) > 1:
        parents, start = [], 0
        while start < len(nodes):
            end = start
            while end < min(start + 9, len(nodes)):
                end += 1
                if end - start >= 3 and nodes[end - 1][0][24] % 4 == 0:  # the last u64, modulo 4
                    break
            text = "".join(f"{hash_text(h)} : {size}\n" for h, size in nodes[start:end])
            parents.append((blake3(text.encode(), key=NODE_KEY).digest(), sum(n for _, n in nodes[start:end])))
            start = end
        nodes = parents
    return nodes[0][0] if nodes else bytes(32)


def file_hash(leaves: list[tuple[bytes, int]]) -> bytes:
    """The hash by which Xet names a file made of these chunks."""
    return blake3(merkle_root(leaves), key=bytes(32)).digest() if leaves else bytes(32)


def unpack(scheme: int, packed: bytes | memoryview, size: int) -> bytes | memoryview:
    """The bytes of one chunk.

    An LZ4 frame that holds less than `size` comes back with bytes of no meaning at its end: pyarrow does not say.
    On upload the chunk's hash catches that.

    Raises:
        HubError: 400, not a payload of that scheme, or of more bytes.
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
        count = len(range(position, size, 4))
        out[position::4] = source[start : start + count]
        start += count
    return out.data


@dataclass(frozen=True)
class ChunkTable:
    """Where the chunks of a xorb are and what they unpack to."""

    rows: np.ndarray  # of TABLE
    ends: np.ndarray  # int64: unpacked bytes up to and with each chunk

    @classmethod
    def of(cls, rows: np.ndarray) -> "ChunkTable":
        return cls(rows, np.cumsum(rows["unpacked"], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.rows)

    def unpacked(self, start: int, end: int) -> int:
        """Unpacked bytes of chunks [start, end)."""
        return int(self.ends[end - 1]) - (int(self.ends[start - 1]) if start else 0)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The stored bytes [first, last) of chunks [start, end), headers included."""
        last = self.rows[end - 1]
        return int(self.rows[start]["offset"]), int(last["offset"]) + HEADER_BYTES + int(last["packed"])

    def cover(self, start: int, end: int, low: int, high: int) -> tuple[int, int, int]:
        """The chunks of [start, end) that hold their bytes [low, high), and the first of them's first byte.

        Example: chunks of 10 bytes, start=2, end=6, low=15, high=25: chunks 3 and 4, byte 10: (3, 5, 10).
        """
        base = int(self.ends[start - 1]) if start else 0
        first = int(np.searchsorted(self.ends, base + low, side="right"))
        last = int(np.searchsorted(self.ends, base + high, side="left")) + 1
        return first, min(last, end), (int(self.ends[first - 1]) if first else 0) - base

    def leaves(self, start: int, end: int) -> list[tuple[bytes, int]]:
        """(hash, unpacked bytes) of chunks [start, end)."""
        rows = self.rows[start:end]
        return list(zip((bytes(h) for h in rows["hash"]), rows["unpacked"].tolist(), strict=True))


class Xorbs:
    """The xorbs under `ROOT/xet/xorbs`, one file each."""

    def __init__(self, disk: Disk):
        self.disk = disk
        self.folder = disk.folder("xet/xorbs")
        self._tables: OrderedDict[str, ChunkTable] = OrderedDict()
        self._lock = threading.Lock()

    def path(self, name: str) -> Path:
        return self.folder / name

    def put(self, name: str, read: Callable[[int], bytes]) -> bool:
        """Store an uploaded xorb; `read(n)` gives the next n bytes of the body, fewer at its end.

        Returns whether it is new. One chunk is in memory at a time.

        Raises:
            HubError: 400, malformed, or its chunks hash to another name; nothing is stored.
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
                digest = blake3(unpack(header[4], payload, unpacked), key=CHUNK_KEY).digest()
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
        """The chunk table of a xorb, or None when it is not held."""
        with self._lock:
            table = self._tables.get(name)
            if table is not None:
                self._tables.move_to_end(name)
                return table
        try:
            with open(self.path(name), "rb") as file:
                file.seek(-8, os.SEEK_END)
                size = struct.unpack("<Q", file.read())[0] * TABLE.itemsize
                file.seek(-8 - size, os.SEEK_END)
                table = ChunkTable.of(np.frombuffer(file.read(size), TABLE))
        except FileNotFoundError:
            return None
        with self._lock:
            self._tables[name] = table
            while len(self._tables) > MAX_CACHED_TABLES:
                self._tables.popitem(last=False)
        return table

    def read(self, name: str, start: int, end: int) -> Iterator[bytes | memoryview]:
        """Yield the unpacked chunks [start, end), reading about READ_BYTES of the file at a time."""
        table = self.table(name)
        assert table is not None, f"xorb {name} is gone"
        with open(self.path(name), "rb", buffering=0) as file:
            while start < end:
                first = int(table.rows[start]["offset"])
                stop = int(np.searchsorted(table.rows["offset"][start:end], first + READ_BYTES)) + start
                stop = max(start + 1, min(stop, end))
                low, high = table.span(start, stop)
                data = memoryview(os.pread(file.fileno(), high - low, low))
                for row in table.rows[start:stop].tolist():
                    _, offset, packed, unpacked, scheme = row
                    at = offset - low + HEADER_BYTES
                    yield unpack(scheme, data[at : at + packed], unpacked)
                start = stop
