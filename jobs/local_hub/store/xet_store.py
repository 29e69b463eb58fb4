"""The content-addressed store behind Xet: xorbs, the files made of them, and deduplication.

The client cuts a file into chunks and asks which ones the store has. It uploads new chunks as xorbs, then a shard that
says which chunk ranges make up which files. The store answers

* what a file is made of (`reconstruction`), for clients that fetch and decode xorbs,
* which xorbs hold a chunk (`dedup`), so that an upload can refer to them,
* the bytes of a range (`read`), for plain HTTP readers.

    ROOT/xet/xorbs/<hash>             see xorbs.py
    ROOT/xet/shards/<its sha256>      each accepted shard as it came; indexed in memory when the Hub starts

A shard is accepted only if every file in it can be read back: its xorbs are stored, the chunk hashes give the file's
hash, and the unpacked bytes give its sha256. So an upload that refers to xorbs of a wiped store gets 400, and no
commit can name content that is not stored.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jobs.local_hub.errors import HubError

from . import xet_shards
from .disk import Disk
from .xet_hashes import Leaf, file_hash, hash_text, range_hash
from .xet_shards import FileRecord, Shard, XorbRecord
from .xorbs import ChunkTable, Xorbs

__all__ = ["XetStore"]


class XetStore:
    """The store in `ROOT/xet`."""

    def __init__(self, disk: Disk):
        self.disk = disk
        self.xorbs = Xorbs(disk)
        self.folder = disk.folder("xet/shards")
        self.files: dict[str, FileRecord] = {}
        self.by_sha256: dict[str, str] = {}  # sha256 of a file: its Xet hash
        self._dedup: dict[bytes, str] = {}  # hash of a chunk that clients may ask for: a xorb that has it
        self._listed: dict[str, Path] = {}  # xorb: the shard that lists its chunks
        for path in sorted(self.folder.iterdir()):
            self._index(path, xet_shards.parse(path.read_bytes()))

    def _index(self, path: Path, shard: Shard) -> None:
        for xorb in shard.xorbs:
            self._listed.setdefault(xorb.name, path)
            for chunk in xorb.dedup_chunks:
                self._dedup.setdefault(chunk, xorb.name)
        for record in shard.files:
            if record.terms:  # a client asks about the first chunk of a file, wherever it is in its xorb
                first = record.terms[0]
                self._dedup.setdefault(bytes(self._table(first.xorb).rows["hash"][first.start]), first.xorb)
            self.files.setdefault(record.name, record)
            if record.sha256 is not None:
                self.by_sha256.setdefault(record.sha256, record.name)

    def put_shard(self, data: bytes) -> None:
        """Register the files of an uploaded shard; HubError 400 if it names content that is not stored or differs."""
        shard = xet_shards.parse(data)
        for xorb in shard.xorbs:
            self._check_xorb(xorb)
        for record in shard.files:
            self._check_file(record)
        path = self.folder / hashlib.sha256(data).hexdigest()
        self.disk.write(path, data)
        self._index(path, shard)

    def _table(self, xorb: str) -> ChunkTable:
        table = self.xorbs.table(xorb)
        if table is None:
            raise HubError(400, f"the shard refers to xorb {xorb}, which is not here: clear the client's Xet cache")
        return table

    def _check_xorb(self, record: XorbRecord) -> None:
        table = self._table(record.name)
        if record.leaves != table.leaves(0, len(table)):
            raise HubError(400, f"the shard lists other chunks for xorb {record.name} than it holds")

    def _check_file(self, record: FileRecord) -> None:
        if record.name in self.files and (record.sha256 is None or self.by_sha256.get(record.sha256) == record.name):
            return
        leaves: list[Leaf] = []
        for i, term in enumerate(record.terms):
            table = self._table(term.xorb)
            if not 0 <= term.start < term.end <= len(table):
                raise HubError(400, f"file {record.name}: xorb {term.xorb} has no chunks [{term.start}, {term.end})")
            if table.unpacked(term.start, term.end) != term.num_bytes:
                raise HubError(400, f"file {record.name}: term {i} is not of {term.num_bytes} bytes")
            chunks = table.leaves(term.start, term.end)
            if record.verification and range_hash(chunks) != record.verification[i]:
                raise HubError(400, f"file {record.name}: the range hash of term {i} does not match")
            leaves += chunks
        found = hash_text(file_hash(leaves))
        if found != record.name:
            raise HubError(400, f"the chunks make file {found}, not {record.name}")
        if record.sha256 is not None:
            digest = hashlib.sha256()
            for term in record.terms:
                for chunk in self.xorbs.read(term.xorb, term.start, term.end):
                    digest.update(chunk)
            if digest.hexdigest() != record.sha256:
                raise HubError(400, f"file {record.name} has sha256 {digest.hexdigest()}, not {record.sha256}")

    def dedup(self, chunk: bytes) -> bytes | None:
        """A shard of the xorbs that were uploaded together with this chunk, or None when it is not known."""
        path = self._listed.get(self._dedup.get(chunk, ""))
        return xet_shards.dedup_answer(xet_shards.parse(path.read_bytes())) if path else None

    def _pieces(self, file: FileRecord, start: int, end: int) -> Iterator[tuple[str, int, int, int]]:
        """(xorb, first chunk, end chunk, position in the file) of the chunks that hold the bytes [start, end)."""
        for i in range(bisect_right(file.ends, start), len(file.terms)):
            term = file.terms[i]
            at = file.ends[i] - term.num_bytes
            if at >= end:
                break
            low, high = max(0, start - at), min(end - at, term.num_bytes)
            first, last, offset = self._table(term.xorb).cover(term.start, term.end, low, high)
            yield term.xorb, first, last, at + offset

    def read(self, name: str, start: int, end: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes [start, end) of a file; only the chunks that hold them are read and decoded."""
        for xorb, first, last, at in self._pieces(self.files[name], start, end):
            for chunk in self.xorbs.read(xorb, first, last):
                size = len(chunk)
                if at < start or at + size > end:
                    chunk = memoryview(chunk)[max(0, start - at) : end - at]
                yield chunk
                at += size

    def reconstruction(self, name: str, start: int, end: int, url: Callable[[str], str], version: int) -> Any:
        """How to make the bytes [start, end) of a file: the answer of /v1 and /v2/reconstructions.

        Chunk ranges are end-exclusive, byte ranges end-inclusive (Xet protocol specification). Ranges of one xorb
        that touch are fetched as one. `url` signs the address of a xorb.
        """
        terms, ranges, skip = [], {}, 0
        for xorb, first, last, at in self._pieces(self.files[name], start, end):
            if not terms:
                skip = start - at
            size = self._table(xorb).unpacked(first, last)
            terms.append({"hash": xorb, "unpacked_length": size, "range": {"start": first, "end": last}})
            ranges.setdefault(xorb, []).append((first, last))
        fetch: dict[str, list] = {xorb: [] for xorb in ranges}
        for xorb, entries in fetch.items():
            for first, last in _joined(ranges[xorb]):
                low, high = self._table(xorb).span(first, last)
                chunks, stored = {"start": first, "end": last}, {"start": low, "end": high - 1}
                if version == 1:
                    entries.append({"range": chunks, "url": url(xorb), "url_range": stored})
                else:
                    entries.append({"url": url(xorb), "ranges": [{"chunks": chunks, "bytes": stored}]})
        return {"offset_into_first_range": skip, "terms": terms, "fetch_info" if version == 1 else "xorbs": fetch}


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted ranges with those that touch or overlap merged: [(4, 6), (0, 2), (2, 3)] gives [(0, 3), (4, 6)]."""
    out: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if out and first <= out[-1][1]:
            out[-1] = (out[-1][0], max(last, out[-1][1]))
        else:
            out.append((first, last))
    return out
