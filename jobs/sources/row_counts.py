"""How many rows a file on the Hub has, counted apart from the job that reads it. The ledger must add up to them.

The cost of a file:
- Parquet: the footer;
- tar: its headers (`jobs.sources.tar_headers`). Members larger than some 100 KB are skipped, at one request of 64 KiB
  each. A tar of smaller ones, or a compressed one, is read once from end to end, in requests of up to 16 MiB: one
  request a member would be slower and run into the Hub's limits. So a WebDataset of small images crosses the network
  twice, once to the driver;
- JSON Lines, JSON, CSV: the file, once.
"""

import csv
import gzip
import io
import json
import lzma
import re
import zlib
from pathlib import PurePosixPath
from typing import cast

import pyarrow.parquet as pq
from huggingface_hub import HfFileSystem

from jobs.sources.tar_headers import TarError, members

__all__ = ["CountError", "Headers", "count_rows"]

_LEAST_WINDOW, _MOST_WINDOW = 1 << 16, 1 << 24  # bytes fetched at a time while looking for headers
_TEXT_BLOCK = 1 << 22
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_OPEN = {".gz": gzip.open, ".tgz": gzip.open, ".xz": lzma.open}  # of compressed tars
# What a file that is not what its name says raises; not OSError, which is what the network raises too.
_UNSOUND = (TarError, EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, UnicodeDecodeError, json.JSONDecodeError)


class CountError(ValueError):
    """A file whose rows cannot be counted; the message says why."""


def count_rows(fs: HfFileSystem, address: str) -> int:
    """Rows of a file, by its name's extension. `address`: with or without hf://. Raises CountError."""
    path = address.removeprefix("hf://")
    kind = _kind(path)
    if kind not in _COUNT:
        raise CountError(f"rows of {kind or 'such'} files cannot be counted; {', '.join(_COUNT)} can")
    try:
        return _COUNT[kind](fs, path)
    except (*_UNSOUND, csv.Error) as error:
        raise CountError(f"it is no sound {kind} file: {error}") from None


def _kind(path: str) -> str:
    name = PurePosixPath(path)
    return PurePosixPath(name.stem).suffix.lower() if name.suffix.lower() in _COMPRESSED else name.suffix.lower()


def _parquet(fs: HfFileSystem, path: str) -> int:
    with fs.open(path, block_size=_LEAST_WINDOW) as file:
        return pq.read_metadata(file).num_rows


def _tar(fs: HfFileSystem, path: str) -> int:
    """Samples of a WebDataset: runs of members whose names are equal up to the first dot of the last part."""
    num_samples, last = 0, None
    with fs.open(path, cache_type="none") as file, _uncompressed(file, path) as tar:
        for member in members(tar):
            key = re.match(r"((?:.*/)?[^./][^./]*)\.[^/]*$", member.name)
            if member.is_file and key and not PurePosixPath(member.name).name.startswith("__"):
                num_samples += key[1] != last
                last = key[1]
    if not num_samples:
        raise CountError("it has no samples: a tar of files such as 000.jpg and 000.txt is read")
    return num_samples


def _uncompressed(file, path: str) -> io.IOBase:
    """A tar's bytes. Those of a compressed one are read from end to end."""
    opened = _OPEN.get(PurePosixPath(path).suffix.lower())
    return opened(Headers(file)) if opened else Headers(file)


class Headers(io.RawIOBase):
    """A file that is read in small pieces, near each other or far apart.

    It fetches a window ahead, which doubles when the next read is close behind it and halves when it is far off.
    """

    def __init__(self, file):
        self._file, self._at, self._start, self._window = file, 0, 0, b""
        self._size = _LEAST_WINDOW

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        size = min(self._file.size - self._at if size < 0 else size, max(0, self._file.size - self._at))
        end = self._start + len(self._window)
        if not self._start <= self._at or self._at + size > end:
            is_near = 0 <= self._at - end < self._size
            self._size = min(_MOST_WINDOW, self._size * 2) if is_near else max(_LEAST_WINDOW, self._size // 2)
            self._file.seek(self._at)
            self._start, self._window = self._at, self._file.read(max(size, self._size))
        data = self._window[self._at - self._start :][:size]
        self._at += len(data)
        return data


def _text(fs: HfFileSystem, path: str) -> io.BufferedReader:
    """A text file's bytes, decompressed."""
    file = fs.open(path, block_size=_TEXT_BLOCK, compression="infer")
    return io.BufferedReader(cast(io.RawIOBase, file), _TEXT_BLOCK)


def _json_lines(fs: HfFileSystem, path: str) -> int:
    with _text(fs, path) as lines:
        return sum(1 for line in lines if line.strip())


def _json(fs: HfFileSystem, path: str) -> int:
    """Items of a list, or lines: `datasets` takes either in a file that ends in .json."""
    with _text(fs, path) as file:
        data = file.read()
    return len(json.loads(data)) if data.lstrip()[:1] == b"[" else sum(1 for line in data.splitlines() if line.strip())


def _csv(fs: HfFileSystem, path: str) -> int:
    """Records, which may have line breaks in them, without the header."""
    with io.TextIOWrapper(_text(fs, path), encoding="utf-8", newline="") as file:
        records = csv.reader(file)
        return max(0, sum(1 for record in records if record) - 1)


_COUNT = {
    ".parquet": _parquet,
    ".tar": _tar,
    ".tgz": _tar,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
}
