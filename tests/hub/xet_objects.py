"""Xorbs and shards made by hand, from the specification, for tests that need wrong ones too."""

import hashlib
import struct

import numpy as np
import pyarrow as pa
from blake3 import blake3

from jobs.local_hub.store import xet_hashes, xet_shards
from jobs.local_hub.store.xet_hashes import hash_bytes, hash_text


def group_bytes(data: bytes) -> bytes:
    """Scheme 2's order: all bytes at positions 0, 4, 8 …, then 1, 5, 9 …, and so on."""
    return b"".join(data[i::4] for i in range(4))


def pack_chunk(data: bytes, scheme: int) -> bytes:
    """A chunk with its header."""
    plain = group_bytes(data) if scheme == 2 else data
    payload = pa.compress(plain, codec="lz4", asbytes=True) if scheme else data
    sizes = [len(payload).to_bytes(3, "little"), len(data).to_bytes(3, "little")]
    return b"\0" + sizes[0] + bytes([scheme]) + sizes[1] + payload


def chunk_hash(data: bytes) -> bytes:
    return blake3(data, key=xet_hashes.CHUNK_KEY).digest()


def make_xorb(chunks: list[bytes], schemes: list[int] | None = None) -> tuple[str, bytes]:
    """The name and the body of a xorb."""
    schemes = schemes or [i % 3 for i in range(len(chunks))]
    name = hash_text(xet_hashes.merkle_root([(chunk_hash(c), len(c)) for c in chunks]))
    return name, b"".join(pack_chunk(c, s) for c, s in zip(chunks, schemes, strict=True))


def make_shard(
    terms: list[tuple[str, int, int]],
    held: dict[str, list[bytes]],
    listed: list[str],
    *,
    sha256: str | None = None,
    name: str | None = None,
    range_hash: bytes | None = None,
) -> bytes:
    """A shard of one file made of (xorb, first chunk, end chunk) terms, and of the listed xorbs' chunks."""
    chunks = [c for xorb, first, end in terms for c in held[xorb][first:end]]
    content = b"".join(chunks)
    digest = hash_bytes(name) if name else xet_hashes.file_hash([(chunk_hash(c), len(c)) for c in chunks])
    sha256 = sha256 or hashlib.sha256(content).hexdigest()
    out = xet_shards.TAG + struct.pack("<QQ", 2, 0)
    out += digest + struct.pack("<4I", xet_shards.HAS_VERIFICATION | xet_shards.HAS_METADATA, len(terms), 0, 0)
    for xorb, first, end in terms:
        size = sum(map(len, held[xorb][first:end]))
        out += hash_bytes(xorb) + struct.pack("<4I", 0, size, first, end)
    for xorb, first, end in terms:
        hashes = b"".join(chunk_hash(c) for c in held[xorb][first:end])
        out += (range_hash or blake3(hashes, key=xet_hashes.RANGE_KEY).digest()) + bytes(16)
    out += hash_bytes(sha256) + bytes(16) + xet_shards.END + bytes(16)
    for xorb in listed:
        out += hash_bytes(xorb) + struct.pack("<4I", 0, len(held[xorb]), sum(map(len, held[xorb])), 0)
        offset = 0
        for chunk in held[xorb]:
            out += chunk_hash(chunk) + struct.pack("<4I", offset, len(chunk), 0, 0)
            offset += len(chunk)
    return out + xet_shards.END + bytes(16)


def noise(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)
