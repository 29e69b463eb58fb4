"""The hashes that name Xet objects (Xet protocol specification, "Hashing").

A chunk's hash is blake3 over its unpacked bytes, keyed with CHUNK_KEY. A xorb's hash is the root of a tree over the
(hash, unpacked bytes) of its chunks. Level by level, groups of 2 to 9 neighbours become one node; a group ends after
its third or a later member if that member's hash is divisible by 4. A file's hash is the root over its chunks, hashed
again with a key of zeros.
"""

from collections.abc import Sequence

from blake3 import blake3

__all__ = ["Leaf", "chunk_hash", "file_hash", "hash_bytes", "hash_text", "merkle_root", "range_hash"]

CHUNK_KEY = bytes.fromhex("6697f5775b9550de3135cbaca597181c9de421109beb2b58b4d0b04b93adf229")
NODE_KEY = bytes.fromhex("017ec5c7a5472996fd946666b48a02e65ddd536f37c76dd2f86352e64a53713f")
RANGE_KEY = bytes.fromhex("7f1857d6ce56ed66127ff913e7a5c3f3a4cd26d5b5db49e64124987f28fb94c3")
MAX_GROUP = 9

Leaf = tuple[bytes, int]  # hash of a chunk, its unpacked bytes


def hash_text(raw: bytes) -> str:
    """The text form of a hash: four little-endian u64 in hexadecimal."""
    return b"".join(raw[i : i + 8][::-1] for i in range(0, 32, 8)).hex()


def hash_bytes(text: str) -> bytes:
    """The 32 bytes of a hash in text form."""
    raw = bytes.fromhex(text)
    return b"".join(raw[i : i + 8][::-1] for i in range(0, 32, 8))


def chunk_hash(data: bytes | memoryview) -> bytes:
    """The hash of a chunk's unpacked bytes."""
    return blake3(data, key=CHUNK_KEY).digest()


def range_hash(leaves: Sequence[Leaf]) -> bytes:
    """The hash by which a shard proves that its client has the chunks of a term."""
    return blake3(b"".join(digest for digest, _ in leaves), key=RANGE_KEY).digest()


def merkle_root(leaves: Sequence[Leaf]) -> bytes:
    """The root over these leaves, which names a xorb; 32 zero bytes for none."""
    nodes = list(leaves)
    while len(nodes) > 1:
        parents, start = [], 0
        while start < len(nodes):
            end = _group_end(nodes, start)
            group = nodes[start:end]
            text = "".join(f"{hash_text(digest)} : {size}\n" for digest, size in group)
            parents.append((blake3(text.encode(), key=NODE_KEY).digest(), sum(size for _, size in group)))
            start = end
        nodes = parents
    return nodes[0][0] if nodes else bytes(32)


def _group_end(nodes: list[Leaf], start: int) -> int:
    last = min(start + MAX_GROUP, len(nodes))
    for end in range(start + 3, last):
        if nodes[end - 1][0][24] % 4 == 0:  # the hash's last u64, modulo 4
            return end
    return last


def file_hash(leaves: Sequence[Leaf]) -> bytes:
    """The hash that names a file made of these chunks."""
    return blake3(merkle_root(leaves), key=bytes(32)).digest() if leaves else bytes(32)
