"""The Xet shard format (Xet protocol specification, "Shard"): the chunks of a file, and the chunks of a xorb.

Numbers are little-endian; every record has 48 bytes.

    header    32-byte tag | u64 version = 2 | u64 footer bytes (0 in an upload)
    files     per file: hash | u32 flags | u32 n | 8 unused
                n terms: xorb hash | u32 flags | u32 unpacked bytes | u32 first chunk | u32 end chunk
                if flag 31, n verifications: range hash | 16 unused
                if flag 30, one metadata record: sha256 of the file | 16 unused
              a record whose hash is all ones ends the section
    xorbs     per xorb: hash | u32 flags | u32 n | u32 unpacked bytes | u32 packed bytes
                n chunks: hash | u32 unpacked offset | u32 unpacked bytes | u32 flags | 4 unused
              a record whose hash is all ones ends the section

The answer to a deduplication query also has lookup tables and a footer (see `dedup_answer`).
A sha256 is stored like a hash: its usual text form is `hash_text` of the field.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice

from jobs.local_hub.errors import HubError

from .xet_hashes import Leaf, hash_bytes, hash_text

__all__ = ["FileRecord", "Shard", "Term", "XorbRecord", "dedup_answer", "parse"]

TAG = b"HFRepoMetaData\0" + bytes.fromhex("556967456a7b815783a5bdd95ccdd14aa9")
HEADER_BYTES = 48
RECORD = struct.Struct("<32s4I")
FOOTER_BYTES = 200
END = b"\xff" * 32
HAS_VERIFICATION = 1 << 31
HAS_METADATA = 1 << 30
DEDUP_CHUNK = 1 << 31  # clients may ask for a chunk with this flag (the first of a file) …
DEDUP_MODULUS = 1024  # … and for a chunk whose last u64 is divisible by this


@dataclass(frozen=True)
class Term:
    """Chunks [start, end) of a xorb, in a file."""

    xorb: str
    num_bytes: int  # unpacked
    start: int
    end: int


@dataclass(frozen=True)
class FileRecord:
    """A file of a shard."""

    name: str
    terms: tuple[Term, ...]
    verification: tuple[bytes, ...]  # a range hash per term, or nothing
    sha256: str | None

    @cached_property
    def ends(self) -> list[int]:
        """The bytes of the file up to the end of each term."""
        return list(accumulate(term.num_bytes for term in self.terms))

    @property
    def size(self) -> int:
        return self.ends[-1] if self.ends else 0


@dataclass(frozen=True)
class XorbRecord:
    """A xorb of a shard, with the chunks that clients may ask for."""

    name: str
    leaves: list[Leaf]
    dedup_chunks: list[bytes]


@dataclass(frozen=True)
class Shard:
    files: list[FileRecord]
    xorbs: list[XorbRecord]
    xorb_section: bytes  # the records of the xorbs


def _records(data: bytes) -> Iterator[tuple[bytes, int, int, int, int]]:
    yield from RECORD.iter_unpack(data[HEADER_BYTES : len(data) - len(data) % RECORD.size])
    raise HubError(400, "the shard ends before its last section does")


def parse(data: bytes) -> Shard:
    """Read a shard; HubError 400 if it is not one of version 2, or cut short."""
    if data[:32] != TAG or len(data) < HEADER_BYTES or struct.unpack_from("<Q", data, 32)[0] != 2:
        raise HubError(400, "not a shard of version 2")
    records = _records(data)
    files, xorbs, section = [], [], []
    while (record := next(records))[0] != END:
        name, flags, count, _, _ = record
        terms = tuple(Term(hash_text(h), size, start, end) for h, _, size, start, end in islice(records, count))
        checks = tuple(h for h, *_ in islice(records, count if flags & HAS_VERIFICATION else 0))
        sha256 = hash_text(next(records)[0]) if flags & HAS_METADATA else None
        files.append(FileRecord(hash_text(name), terms, checks, sha256))
    while (record := next(records))[0] != END:
        chunks = list(islice(records, record[2]))
        asked = [h for h, _, _, flags, _ in chunks if flags & DEDUP_CHUNK or _number(h, 3) % DEDUP_MODULUS == 0]
        xorbs.append(XorbRecord(hash_text(record[0]), [(h, size) for h, _, size, _, _ in chunks], asked))
        section += [record, *chunks]
    return Shard(files, xorbs, b"".join(RECORD.pack(*record) for record in section))


def _number(digest: bytes, place: int) -> int:
    """One of the four u64 of a hash."""
    return struct.unpack_from("<Q", digest, 8 * place)[0]


def dedup_answer(shard: Shard) -> bytes:
    """A complete shard of this shard's xorbs and no files, for a client's deduplication table.

    After the two sections come the lookup tables, each sorted by the first u64 of the hash:
    xorbs (u64 hash, u32 record index), chunks (u64 hash, u32 record index of the xorb, u32 chunk index);
    then the footer.
    """
    xorb_rows, chunk_rows, index = [], [], 0
    for xorb in shard.xorbs:
        xorb_rows.append((_number(hash_bytes(xorb.name), 0), index))
        chunk_rows += [(_number(digest, 0), index, i) for i, (digest, _) in enumerate(xorb.leaves)]
        index += 1 + len(xorb.leaves)
    xorb_lookup = b"".join(struct.pack("<QI", *row) for row in sorted(xorb_rows))
    chunk_lookup = b"".join(struct.pack("<QII", *row) for row in sorted(chunk_rows))
    end = END + bytes(16)
    xorbs_at = HEADER_BYTES + len(end)
    lookup_at = xorbs_at + len(shard.xorb_section) + len(end)
    chunks_at = lookup_at + len(xorb_lookup)
    footer_at = chunks_at + len(chunk_lookup)
    # version, files, xorbs, file lookup (offset, entries), xorb lookup, chunk lookup
    offsets = (1, HEADER_BYTES, xorbs_at, lookup_at, 0, lookup_at, len(xorb_rows), chunks_at, len(chunk_rows))
    # no HMAC key; created at 0, never expires; 48 unused bytes; three byte totals that nobody reads
    footer = struct.pack("<9Q", *offsets) + bytes(32) + struct.pack("<QQ", 0, 2**64 - 1) + bytes(48)
    footer += struct.pack("<4Q", 0, 0, 0, footer_at)
    assert len(footer) == FOOTER_BYTES, len(footer)
    header = TAG + struct.pack("<QQ", 2, FOOTER_BYTES)
    return b"".join((header, end, shard.xorb_section, end, xorb_lookup, chunk_lookup, footer))
