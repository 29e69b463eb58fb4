"""The Xet shard format (specification, "Shard"): which chunks a file is made of, and which chunks a xorb holds.

All numbers are little-endian; every record has 48 bytes.

    header    32-byte tag | u64 version = 2 | u64 footer bytes (0 in an upload)
    files     per file: hash | u32 flags | u32 n | 8 unused
                n terms: xorb hash | u32 flags | u32 unpacked bytes | u32 first chunk | u32 end chunk
                if flag 31, n verifications: range hash | 16 unused
                if flag 30, one metadata record: sha256 of the file | 16 unused
              a record whose hash is all ones ends the section
    xorbs     per xorb: hash | u32 flags | u32 n | u32 unpacked bytes | u32 packed bytes
                n chunks: hash | u32 unpacked offset | u32 unpacked bytes | u32 flags | 4 unused
              a record whose hash is all ones ends the section

An answer to a deduplication query also has lookup tables and a footer of 200 bytes (see `dedup_answer`).
A sha256 is stored as hashes are, so its usual text form is `hash_text` of the field.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import HubError
from .xorbs import hash_text

TAG = b"HFRepoMetaData\0" + bytes.fromhex("556967456a7b815783a5bdd95ccdd14aa9")
HEADER_BYTES = 48
RECORD_BYTES = 48
FOOTER_BYTES = 200
END = b"\xff" * 32
HAS_VERIFICATION = 1 << 31
HAS_METADATA = 1 << 30
DEDUP_CHUNK = 1 << 31  # flag of a chunk that clients may ask for: the first of a file
DEDUP_MODULUS = 1024  # … and every chunk whose last u64 is divisible by this


@dataclass(frozen=True)
class Term:
    """Chunks [start, end) of a xorb, in a file."""

    xorb: str
    num_bytes: int  # unpacked
    start: int
    end: int


@dataclass(frozen=True)
class FileRecord:
    """A file of a shard; verification holds one range hash per term, or nothing."""

    name: str
    terms: tuple[Term, ...]
    verification: tuple[bytes, ...]
    sha256: str | None


@dataclass(frozen=True)
class XorbRecord:
    """A xorb of a shard: its chunks as (hash, unpacked bytes, flags)."""

    name: str
    chunks: tuple[tuple[bytes, int, int], ...]

    def dedup_chunks(self) -> Iterator[bytes]:
        """The chunks that clients may ask for."""
        for digest, _, flags in self.chunks:
            if flags & DEDUP_CHUNK or int.from_bytes(digest[24:], "little") % DEDUP_MODULUS == 0:
                yield digest


@dataclass(frozen=True)
class Shard:
    """A parsed shard; `xorb_section` is the bytes [first, last) of its records of xorbs."""

    files: tuple[FileRecord, ...]
    xorbs: tuple[XorbRecord, ...]
    xorb_section: tuple[int, int]


class _Records:
    """Walks a shard record by record."""

    def __init__(self, data: bytes):
        self.data = data
        self.at = HEADER_BYTES

    def next(self) -> tuple[bytes, tuple[int, int, int, int]]:
        record = self.data[self.at : self.at + RECORD_BYTES]
        if len(record) < RECORD_BYTES:
            raise HubError(400, f"the shard ends in the middle, at byte {self.at}")
        self.at += RECORD_BYTES
        return record[:32], struct.unpack_from("<4I", record, 32)

    def take(self, count: int) -> list[tuple[bytes, tuple[int, int, int, int]]]:
        return [self.next() for _ in range(count)]


def parse(data: bytes) -> Shard:
    """Read a shard.

    Raises:
        HubError: 400, not a shard of version 2, or cut short.
    """
    if data[:32] != TAG or len(data) < HEADER_BYTES or struct.unpack_from("<Q", data, 32)[0] != 2:
        raise HubError(400, "not a shard of version 2")
    records = _Records(data)
    files, xorbs = [], []
    while True:
        digest, (flags, count, _, _) = records.next()
        if digest == END:
            break
        terms = tuple(Term(hash_text(h), size, a, b) for h, (_, size, a, b) in records.take(count))
        checks = tuple(h for h, _ in records.take(count if flags & HAS_VERIFICATION else 0))
        sha256 = hash_text(records.next()[0]) if flags & HAS_METADATA else None
        files.append(FileRecord(hash_text(digest), terms, checks, sha256))
    first = records.at
    while True:
        last = records.at
        digest, (_, count, _, _) = records.next()
        if digest == END:
            break
        chunks = tuple((h, size, flags) for h, (_, size, flags, _) in records.take(count))
        xorbs.append(XorbRecord(hash_text(digest), chunks))
    return Shard(tuple(files), tuple(xorbs), (first, last))


def dedup_answer(section: bytes) -> bytes:
    """A complete shard that describes the xorbs of these records and no file, for a client's dedup table.

    After the two sections come the lookup tables, each sorted by the first u64 of the hash:
    xorbs (u64 hash, u32 record index), chunks (u64 hash, u32 record index of the xorb, u32 chunk index);
    then the footer.
    """
    xorb_rows, chunk_rows, index = [], [], 0
    while index * RECORD_BYTES < len(section):
        start = index * RECORD_BYTES
        key, count = *struct.unpack_from("<Q", section, start), *struct.unpack_from("<I", section, start + 36)
        xorb_rows.append((key, index))
        for i in range(count):
            chunk = struct.unpack_from("<Q", section, start + (i + 1) * RECORD_BYTES)[0]
            chunk_rows.append((chunk, index, i))
        index += 1 + count
    xorb_lookup = b"".join(struct.pack("<QI", *row) for row in sorted(xorb_rows))
    chunk_lookup = b"".join(struct.pack("<QII", *row) for row in sorted(chunk_rows))
    end = END + bytes(16)
    xorbs_at = HEADER_BYTES + RECORD_BYTES
    lookup_at = xorbs_at + len(section) + RECORD_BYTES
    chunks_at = lookup_at + len(xorb_lookup)
    footer_at = chunks_at + len(chunk_lookup)
    # version, files, xorbs, file lookup (offset, entries), xorb lookup, chunk lookup
    offsets = (1, HEADER_BYTES, xorbs_at, lookup_at, 0, lookup_at, len(xorb_rows), chunks_at, len(chunk_rows))
    # no HMAC key; created at 0, never expires; 48 unused bytes; three byte totals that nobody reads
    footer = struct.pack("<9Q", *offsets) + bytes(32) + struct.pack("<QQ", 0, 2**64 - 1) + bytes(48)
    footer += struct.pack("<4Q", 0, 0, 0, footer_at)
    assert len(footer) == FOOTER_BYTES, len(footer)
    header = TAG + struct.pack("<QQ", 2, FOOTER_BYTES)
    return b"".join((header, end, section, end, xorb_lookup, chunk_lookup, footer))
