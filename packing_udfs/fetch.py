"""Byte ranges of files in a Hub repository, a local folder or any fsspec URL, through faults that pass.

One loop serves all of them: ask, keep what arrives, and after a fault that may pass (429, 5xx, reset, timeout, a body
that ends early) wait and ask for the rest, from the last byte on. Waits double up to `MAX_WAIT`, or are what
Retry-After says. Without a new byte for `retry_seconds`, or at once for what no wait mends (no access, no such file),
it raises FetchError. Cost: one request a range; on the Hub the first range of a file pays the redirect to the storage
behind it, whose signed URL is then used directly until it is refused. Whole small files of a Hub repository are one
request a node: they are kept in huggingface_hub's folder for assets, by commit.

Rejected: fsspec for the Hub too (a listing for every forked worker, two requests a range, a broken range starts over),
`hf_hub_download` for the small files (two requests each, by every rank that starts before the first has them), and
pyarrow's dataset scanner (no prefetch by default, buffers that are never released, aborts when left early).
"""

import http.client
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import fsspec
import pyarrow as pa
from huggingface_hub import HfApi, cached_assets_path, constants, hf_hub_url
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.utils import WeakFileLock, build_hf_headers, validate_repo_id

from packing_udfs import connections
from packing_udfs.folder_tree import PUBLISHED, places

T = TypeVar("T")
log = logging.getLogger(__name__)

RANGE_SIZE = 128 << 20  # bytes of one request at most: all of a row group, unless those are huge
BLOCK_SIZE = 1 << 20  # bytes taken at a time; in between it is seen whether the reader has been left
MAX_WAIT = 30.0  # seconds between two attempts at most, unless Retry-After says more
_WORTH_SAYING = 5.0  # seconds of wait from which on it is logged
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_REFUSED_STATUS = frozenset({400, 401, 403, 404, 410})  # how storage answers to a signed URL that has expired
_REDIRECTS, _MAX_REDIRECTS = frozenset({301, 302, 303, 307, 308}), 5
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_URL = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/@]+))?/?")


class FetchError(Exception):
    """Bytes that could not be had; the message names the file, the range, the attempts and the last fault."""


class AbandonedError(Exception):
    """The reader was left while a range was under way; nobody waits for it."""


class _PassingError(OSError):
    """An answer that may be another one later. `wait` is what the server asked for, in seconds."""

    def __init__(self, message: str, wait: float | None = None):
        super().__init__(message)
        self.wait = wait


class Stop:
    """Tells fetching threads to end: set by their owner, or true once the main thread has ended.

    The latter lets an interpreter exit at once although somebody still holds an iterator.
    """

    def __init__(self):
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set() or not threading.main_thread().is_alive()

    def check(self) -> None:
        """Raises AbandonedError when set."""
        if self.is_set():
            raise AbandonedError

    def wait(self, seconds: float) -> None:
        """Sleep. Raises AbandonedError when set before or meanwhile."""
        end = time.monotonic() + seconds
        self.check()
        while (rest := end - time.monotonic()) > 0:
            self._event.wait(min(rest, 0.2))
            self.check()


@dataclass
class Source:
    """Where a dataset's files are: a local folder or any URL that fsspec opens. Picklable; `HubSource` is for the Hub.

    retry_seconds, range_size, block_size: see `RANGE_SIZE`, `BLOCK_SIZE` and the module docstring.
    """

    name: str
    retry_seconds: float
    range_size: int = RANGE_SIZE
    block_size: int = BLOCK_SIZE
    _files: dict[str, str] | None = field(default=None, init=False, repr=False)  # path → file in the folder

    @property
    def is_local(self) -> bool:
        return "://" not in self.name

    @property
    def num_threads(self) -> int:
        """Ranges to ask for at a time: eight hide 50 ms a request. From a local disk one reads while one parses."""
        return 2 if self.is_local else 8

    def read_file(self, path: str) -> bytes:
        """A whole small file. Raises FileNotFoundError when there is none, FetchError when it cannot be had."""
        fs, root = fsspec.core.url_to_fs(self.name)
        place = self._place(path)
        return self._retried(path, lambda _: fs.cat_file(f"{root}/{place}"))

    def _place(self, path: str) -> str:
        """The file that stands for a path, by the folder's published.json as it was first found."""
        if self._files is None:
            fs, root = fsspec.core.url_to_fs(self.name)
            self._files = self._retried(PUBLISHED, lambda _: places(lambda name: fs.cat_file(f"{root}/{name}")))
        if self._files and path not in self._files:
            raise FileNotFoundError(f"{self.name}: {path}: no such file")
        return self._files.get(path, path)

    def list_files(self, folder: str) -> list[tuple[str, int]]:
        """(path, bytes) of the Parquet files below a folder, sorted."""
        fs, root = fsspec.core.url_to_fs(self.name)
        found = self._retried(folder, lambda _: fs.find(f"{root}/{folder}", detail=True))
        prefix = len(root.rstrip("/")) + 1
        return sorted((path[prefix:], info["size"]) for path, info in found.items() if path.endswith(".parquet"))

    def read(self, path: str, offset: int, length: int, stop: Stop) -> pa.Buffer:
        """`length` bytes of a file from `offset` on. Raises FetchError, or AbandonedError when `stop` is set."""
        data = pa.allocate_buffer(length)  # Arrow's pool takes memory back, malloc gives it to the system
        view, done = memoryview(data).cast("B"), 0

        def rest(progress: Callable) -> None:
            nonlocal done
            while done < length:
                for num_bytes in self._receive(path, offset + done, view[done : done + self.range_size]):
                    done += num_bytes
                    progress()

        try:
            self._retried(f"{path}, bytes {offset}–{offset + length - 1}", rest, stop)
        except FileNotFoundError as fault:  # the manifest names it
            raise FetchError(f"{self.name}: {path}: FileNotFoundError: {fault}") from fault
        return data

    def _receive(self, path: str, offset: int, view: memoryview) -> Iterator[int]:
        """Fill `view` with a file's bytes from `offset` on, from one request; how many came, as they come."""
        place = self._place(path)
        if self.is_local:
            with open(f"{self.name}/{place}", "rb", buffering=0) as file:
                file.seek(offset)
                num = file.readinto(view)
        else:
            fs, root = fsspec.core.url_to_fs(self.name)
            data = fs.cat_file(f"{root}/{place}", start=offset, end=offset + len(view))
            num = len(data)
            view[:num] = data
        if not num:
            raise FetchError(f"{self.name}: {path}: ends {len(view)} bytes before the manifest says")
        yield num

    def _retried(self, what: str, attempt: Callable[[Callable], T], stop: Stop | None = None) -> T:
        """`attempt(progress)` until it returns; it calls `progress` when bytes came, which starts the count anew."""
        stop, draw = stop or Stop(), random.Random()  # its own, so that ranks do not come back all at once
        since, attempts = time.monotonic(), 0

        def progress() -> None:
            nonlocal since, attempts
            since, attempts = time.monotonic(), 0
            stop.check()

        while True:
            try:
                return attempt(progress)
            except FileNotFoundError:
                raise
            except (PermissionError, IsADirectoryError, NotADirectoryError) as fault:
                raise FetchError(f"{self.name}: {what}: {type(fault).__name__}: {fault}") from fault
            except connections.FAULTS as fault:
                attempts += 1
                asked = getattr(fault, "wait", None)
                wait = min(0.25 * 2**attempts, MAX_WAIT) * draw.uniform(0.5, 1.0) if asked is None else asked
                waited, cause = time.monotonic() - since, f"{type(fault).__name__}: {fault}"
                if waited + wait > self.retry_seconds:
                    raise FetchError(
                        f"{self.name}: {what}: gave up after {attempts} attempts in {waited:.0f} s without a byte "
                        f"(retry_seconds={self.retry_seconds:g}); last fault: {cause}"
                    ) from fault
            if wait >= _WORTH_SAYING:
                log.warning("%s: %s: %s: trying again in %.0f s", self.name, what, cause, wait)
            stop.wait(wait)


class HubSource(Source):
    """A dataset repository on the Hub at one commit: the one that `revision` stood for in the first answer."""

    def __init__(self, repo: str, revision: str, *args, **options):
        super().__init__(f"hf://datasets/{repo}", *args, **options)
        self.repo, self.revision = repo, revision
        self._signed: dict[str, str] = {}  # where the Hub has led to

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_signed": {}}  # who has a signed URL has access

    @property
    def is_pinned(self) -> bool:
        return _COMMIT.fullmatch(self.revision) is not None

    def read_file(self, path: str) -> bytes:
        """One request a node: the first rank that asks keeps it for the others. While `revision` is a branch it has to
        be asked for, whatever is kept."""
        if not self.is_pinned:
            data = self._retried(f"{path} at {self.revision}", lambda _: self._whole(path))
            if not self.is_pinned:
                raise FetchError(f"{self.name}: the server names no commit for revision {self.revision!r}")
            _keep(self._kept(path), data)
            return data
        kept = self._kept(path)
        with WeakFileLock(f"{kept}.lock"):
            if not kept.exists():
                _keep(kept, self._retried(path, lambda _: self._whole(path)))
        return kept.read_bytes()

    def list_files(self, folder: str) -> list[tuple[str, int]]:
        tree = HfApi().list_repo_tree(self.repo, folder, recursive=True, revision=self.revision, repo_type="dataset")
        try:
            return sorted((item.path, item.size) for item in tree if item.path.endswith(".parquet"))
        except EntryNotFoundError:
            return []

    def _kept(self, path: str) -> Path:
        assets = constants.HF_ASSETS_CACHE
        folder = cached_assets_path("packing-udfs", namespace=self.repo, subfolder=self.revision, assets_dir=assets)
        return folder / path.replace("/", "--")

    def _whole(self, path: str) -> bytes:
        with self._get(path, 200) as answer:
            return answer.read()

    def _receive(self, path: str, offset: int, view: memoryview) -> Iterator[int]:
        with self._get(path, 206, Range=f"bytes={offset}-{offset + len(view) - 1}") as answer:
            start = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
            if start != str(offset) or (answer.length or 0) > len(view):
                raise FetchError(
                    f"{self.name}: {path}: asked for {len(view)} bytes from {offset} on, got {answer.length} "
                    f"from {start or 'no Content-Range'}"
                )
            done = 0
            while done < len(view):
                num = connections.receive(answer, view[done : done + self.block_size])
                if not num:
                    raise _PassingError(f"the body ended {len(view) - done} bytes early")
                done += num
                yield num

    @contextmanager
    def _get(self, path: str, status: int, **headers: str) -> Iterator[http.client.HTTPResponse]:
        """The answer to a request for a file, of that status, from its storage where that is known."""
        if constants.HF_HUB_OFFLINE:
            raise FetchError(f"{self.name}: {path}: HF_HUB_OFFLINE is set")
        resolve = hf_hub_url(self.repo, path, repo_type="dataset", revision=self.revision)
        url = signed = self._signed.get(path, resolve)
        headers["Accept-Encoding"] = "identity"
        for _ in range(_MAX_REDIRECTS):
            is_hub = urlsplit(url)[:2] == urlsplit(resolve)[:2]  # a token never leaves the Hub
            own = build_hf_headers(library_name="packing-udfs") if is_hub else {}
            with connections.get(url, headers | own) as answer:
                commit = answer.headers.get("X-Repo-Commit", "")
                if is_hub and not self.is_pinned and _COMMIT.fullmatch(commit):
                    self.revision = commit
                if answer.status == status:
                    if url != resolve and status == 206:
                        self._signed[path] = url
                    yield answer
                    return
                body = answer.read(1000).decode(errors="replace")  # also so that the connection can be kept
                if answer.status in _REDIRECTS and (to := answer.headers.get("Location")):
                    url = urljoin(url, to)
                    continue
            what = f"{answer.status} {answer.reason}: {answer.headers.get('X-Error-Message') or body}"
            if signed != resolve and answer.status in _REFUSED_STATUS:
                self._signed.pop(path, None)
                raise _PassingError(f"{what}, for a signed URL, which has expired", wait=0.0)
            if answer.status in _PASSING_STATUS:
                raise _PassingError(what, _asked_wait(answer.headers))
            if answer.headers.get("X-Error-Code") == "EntryNotFound":
                raise FileNotFoundError(f"{self.name}: {path}: {what}")
            raise FetchError(f"{self.name}: {path} at {self.revision}: {what}, where {status} was expected")
        raise FetchError(f"{self.name}: {path}: more than {_MAX_REDIRECTS} redirects")


def open_source(repo_or_path: str, revision: str | None = None, **options) -> Source:
    """The source that a name stands for: a local folder, `owner/name` or `hf://datasets/owner/name[@revision]` on the
    Hub, or any other fsspec URL. `options` are those of Source. Raises ValueError for anything else."""
    text = os.fspath(repo_or_path)
    if text.startswith("hf://"):
        if not (found := _HUB_URL.fullmatch(text)):
            raise ValueError(f"{text!r}: must be hf://datasets/owner/name, with @revision behind it if wanted")
        if found[2] and revision not in (None, found[2]):
            raise ValueError(f"{text!r} and revision={revision!r}: two revisions; give one")
        return HubSource(found[1], found[2] or revision or "main", **options)
    if "://" in text or os.path.isdir(text):
        if revision is not None:
            raise ValueError(f"revision={revision!r}: only repositories on the Hub have revisions, {text!r} is none")
        return Source(text if "://" in text else os.path.abspath(text), **options)
    if text.count("/") != 1:
        raise ValueError(f"{text!r}: is no folder here, no URL and no repository of the form owner/name")
    validate_repo_id(text)
    return HubSource(text, revision or "main", **options)


def _keep(path: Path, data: bytes) -> None:
    """Write whole or not at all: other processes look without a lock."""
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    draft.write_bytes(data)
    draft.replace(path)


def _asked_wait(headers) -> float | None:
    """Seconds from Retry-After, or from the Hub's `ratelimit: "resolvers";r=0;t=55`; None when neither says."""
    limit = headers.get("ratelimit", "").replace(" ", "")
    found = re.fullmatch(r"\s*(\d+)\s*", headers.get("Retry-After", "")) or re.search(r";r=0;t=(\d+)", limit)
    return float(found[1]) or None if found else None
