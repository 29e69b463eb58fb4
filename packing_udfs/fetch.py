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
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa
from huggingface_hub import HfApi, cached_assets_path, constants, hf_hub_url
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import (
    WeakFileLock,
    build_hf_headers,
    get_session,
    hf_raise_for_status,
    validate_repo_id,
)

T = TypeVar("T")
log = logging.getLogger(__name__)

READ_TIMEOUT = 20.0  # seconds of silence on a connection before the range is asked for again
MAX_WAIT = 30.0  # seconds between two attempts at most, unless Retry-After says more
_WORTH_SAYING = 5.0  # seconds of wait from which on it is logged
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_REFUSED_STATUS = frozenset({400, 401, 403, 404, 410})  # how storage answers to a signed URL that has expired
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_URL = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/@]+))?/?")
_NEVER_PASSES = (PermissionError, IsADirectoryError, NotADirectoryError, OfflineModeIsEnabled)


class FetchError(OSError):
    """Bytes that could not be had; the message names the file, the range, the attempts and the last fault."""


class AbandonedError(Exception):
    """The reader was left while a range was under way; nobody waits for it."""


class _PassingError(Exception):
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

    def wait(self, seconds: float) -> None:
        """Sleep. Raises AbandonedError when set before or meanwhile."""
        end = time.monotonic() + seconds
        while not self.is_set():
            rest = end - time.monotonic()
            if rest <= 0:
                return
            self._event.wait(min(rest, 0.2))
        raise AbandonedError


class Patience:
    """Waits between attempts, and gives up after `seconds` without progress."""

    def __init__(self, seconds: float, stop: Stop, what: str):
        self._seconds, self._stop, self._what = seconds, stop, what
        self._jitter = random.Random()  # its own: the user's random state is not touched, ranks do not retry at once
        self.progress()

    def progress(self) -> None:
        """Bytes came: start counting anew."""
        self._since, self._attempts = time.monotonic(), 0

    def wait(self, fault: Exception) -> None:
        """Sleep before the next attempt, or raise FetchError."""
        self._attempts += 1
        asked = getattr(fault, "wait", None)
        wait = asked or min(0.25 * 2**self._attempts, MAX_WAIT) * self._jitter.uniform(0.5, 1.0)
        waited = time.monotonic() - self._since
        if waited + wait > self._seconds:
            raise FetchError(
                f"{self._what}: gave up after {self._attempts} attempts in {waited:.0f} s without a byte "
                f"(retry_seconds={self._seconds:g}); last fault: {type(fault).__name__}: {fault}"
            ) from fault
        if wait >= _WORTH_SAYING:
            log.warning("%s: %s: trying again in %.0f s", self._what, fault, wait)
        self._stop.wait(wait)


class Source:
    """Where a dataset's files are. Picklable; connections are made by the process that uses them."""

    name: str
    retry_seconds: float
    passing: tuple[type[Exception], ...] = ()  # faults that may pass, beside those of HTTP
    num_threads = 4  # ranges to ask for at a time: hides 50 ms a request; more contend for the interpreter's lock

    def read_file(self, path: str) -> bytes:
        """A whole small file. Raises FileNotFoundError when there is none, FetchError when it cannot be had."""
        raise NotImplementedError

    def list_files(self, folder: str) -> list[tuple[str, int]]:
        """(path, bytes) of the Parquet files below a folder, sorted."""
        raise NotImplementedError

    def _chunks(self, path: str, offset: int, length: int) -> Iterator[bytes | pa.Buffer]:
        """A range's bytes as they come."""
        raise NotImplementedError

    def read(self, path: str, offset: int, length: int, stop: Stop) -> pa.Buffer:
        """`length` bytes of a file from `offset` on. Raises FetchError, or AbandonedError when `stop` is set."""
        whole, view, done = None, None, 0

        def rest(patience: Patience) -> pa.Buffer:
            nonlocal whole, view, done
            for chunk in self._chunks(path, offset + done, length - done):
                if stop.is_set():
                    raise AbandonedError
                if len(chunk) > length - done:
                    raise FetchError(f"{self.name}: {path}: more bytes than were asked for")
                if len(chunk) == length:
                    return pa.py_buffer(chunk)  # all at once, as files come: no copy
                if whole is None:
                    whole = pa.allocate_buffer(length)  # Arrow's pool takes memory back, malloc gives it to the system
                    view = memoryview(whole).cast("B")
                view[done : done + len(chunk)] = chunk
                done += len(chunk)
                patience.progress()
            if done < length:
                raise _PassingError(f"the body ended {length - done} bytes early")
            return whole

        try:
            return self._retried(f"{path}, bytes {offset}–{offset + length - 1}", rest, stop)
        except FileNotFoundError as fault:  # the manifest names it
            raise FetchError(f"{self.name}: {path}: FileNotFoundError: {fault}") from fault

    def _retried(self, what: str, attempt: Callable[[Patience], T], stop: Stop | None = None) -> T:
        """`attempt` until it returns: the loop of the module docstring."""
        patience = Patience(self.retry_seconds, stop or Stop(), f"{self.name}: {what}")
        while True:
            try:
                return attempt(patience)
            except (FetchError, FileNotFoundError):
                raise
            except EntryNotFoundError as fault:
                raise FileNotFoundError(f"{self.name}: {what}: no such file") from fault
            except _NEVER_PASSES as fault:
                raise FetchError(f"{self.name}: {what}: {type(fault).__name__}: {fault}") from fault
            except HfHubHTTPError as fault:
                if fault.response.status_code not in _PASSING_STATUS:
                    raise FetchError(f"{self.name}: {what}: {fault}") from fault
                patience.wait(_PassingError(str(fault), _asked_wait(fault.response.headers)))
            except (HTTPError, _PassingError, *self.passing) as fault:
                patience.wait(fault)


def open_source(repo_or_path: str, revision: str | None = None, *, retry_seconds: float) -> Source:
    """The source that a name stands for: a local folder, `owner/name` or `hf://datasets/owner/name[@revision]` on the
    Hub, or any other fsspec URL. Raises ValueError for anything else."""
    text = os.fspath(repo_or_path)
    if text.startswith("hf://"):
        if not (found := _HUB_URL.fullmatch(text)):
            raise ValueError(f"{text!r}: must be hf://datasets/owner/name, with @revision behind it if wanted")
        if found[2] and revision not in (None, found[2]):
            raise ValueError(f"{text!r} and revision={revision!r}: two revisions; give one")
        return HubSource(found[1], found[2] or revision or "main", retry_seconds)
    if "://" in text or os.path.isdir(text):
        if revision is not None:
            raise ValueError(f"revision={revision!r}: only repositories on the Hub have revisions, {text!r} is none")
        return FsspecSource(text if "://" in text else os.path.abspath(text), retry_seconds)
    if text.count("/") != 1:
        raise ValueError(f"{text!r}: is no folder here, no URL and no repository of the form owner/name")
    validate_repo_id(text)
    return HubSource(text, revision or "main", retry_seconds)


@dataclass
class FsspecSource(Source):
    """A local folder or any URL that fsspec opens."""

    name: str
    retry_seconds: float
    passing = (OSError,)
    _opened: tuple | None = field(default=None, init=False, repr=False)

    def __post_init__(self):
        self._is_local = "://" not in self.name
        if self._is_local:
            self.num_threads = 2  # one reads while one parses; more only contend for memory

    def __getstate__(self):
        return {**self.__dict__, "_opened": None}

    def _open(self) -> tuple[fsspec.AbstractFileSystem, str]:
        # An event loop of fsspec does not survive a fork, so the file system belongs to a process.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), *fsspec.core.url_to_fs(self.name))
        return self._opened[1:]

    def read_file(self, path: str) -> bytes:
        fs, root = self._open()
        return fs.cat_file(f"{root}/{path}")

    def list_files(self, folder: str) -> list[tuple[str, int]]:
        fs, root = self._open()
        found = fs.find(f"{root}/{folder}", detail=True)
        prefix = len(root.rstrip("/")) + 1
        return sorted((path[prefix:], info["size"]) for path, info in found.items() if path.endswith(".parquet"))

    def _chunks(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        if self._is_local:
            with pa.OSFile(f"{self.name}/{path}") as file:
                file.seek(offset)
                chunk = file.read_buffer(length)
        else:
            fs, root = self._open()
            chunk = fs.cat_file(f"{root}/{path}", start=offset, end=offset + length)
        if len(chunk) < length:
            raise FetchError(f"{self.name}: {path}: ends {length - len(chunk)} bytes before the manifest says")
        yield chunk


@dataclass
class HubSource(Source):
    """A dataset repository on the Hub at one commit."""

    repo: str
    revision: str
    retry_seconds: float
    _signed: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    @property
    def name(self) -> str:
        return f"hf://datasets/{self.repo}@{self.revision[:12]}"

    @property
    def is_pinned(self) -> bool:
        return _COMMIT.fullmatch(self.revision) is not None

    def __getstate__(self):
        return {**self.__dict__, "_signed": {}}

    def pin(self, path: str) -> None:
        """Set `revision` to the commit that it stands for: the one of file `path`, which is kept; of the repository
        where there is no such file. A full commit hash costs no request."""
        if self.is_pinned:
            return
        try:
            data, commit = self._retried(f"revision {self.revision}", lambda _: self._whole(path))
        except FileNotFoundError:
            info = self._retried("its head", lambda _: HfApi().dataset_info(self.repo, revision=self.revision))
            data, commit = None, info.sha
        if not _COMMIT.fullmatch(commit or ""):
            raise FetchError(f"{self.name}: the server names no commit for revision {self.revision!r}")
        self.revision = commit
        if data is not None:
            _keep(self._kept(path), data)

    def read_file(self, path: str) -> bytes:
        """One request a node: the first rank that asks keeps it for the others. `revision` must be a commit."""
        kept = self._kept(path)
        with WeakFileLock(f"{kept}.lock"):
            if not kept.exists():
                _keep(kept, self._retried(path, lambda _: self._whole(path))[0])
        return kept.read_bytes()

    def _kept(self, path: str) -> Path:
        assets = constants.HF_ASSETS_CACHE
        folder = cached_assets_path("packing-udfs", namespace=self.repo, subfolder=self.revision, assets_dir=assets)
        return folder / path.replace("/", "--")

    def _whole(self, path: str) -> tuple[bytes, str | None]:
        """(the file, the commit that it is of)."""
        with self._get(path) as answer:
            _check(f"{self.name}: {path}", answer, 200)
            first = answer.history[0] if answer.history else answer
            return answer.read(), first.headers.get("X-Repo-Commit")

    def list_files(self, folder: str) -> list[tuple[str, int]]:
        def listed(_) -> list[tuple[str, int]]:
            tree = HfApi().list_repo_tree(
                self.repo, folder or None, recursive=True, revision=self.revision, repo_type="dataset"
            )
            return sorted((item.path, item.size) for item in tree if item.path.endswith(".parquet"))

        return self._retried(f"files of {folder}/", listed)

    def _chunks(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        with self._get(path, Range=f"bytes={offset}-{offset + length - 1}") as answer:
            _check(f"{self.name}: {path}", answer, 206)
            start = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
            if start != str(offset):
                raise FetchError(f"{self.name}: {path}: asked for byte {offset} on, got {start or 'no Content-Range'}")
            yield from answer.iter_raw()

    @contextmanager
    def _get(self, path: str, **headers: str):
        """The answer to a request for a file, from its storage where that is known. Raises for faults that pass."""
        signed = self._signed.get(path)
        resolve = hf_hub_url(self.repo, path, repo_type="dataset", revision=self.revision)
        url = signed or resolve
        headers["Accept-Encoding"] = "identity"
        if urlsplit(url)[:2] == urlsplit(resolve)[:2]:  # a token never leaves the Hub
            headers |= build_hf_headers(library_name="packing-udfs")
        with get_session().stream("GET", url, headers=headers, timeout=READ_TIMEOUT, follow_redirects=True) as answer:
            if signed and answer.status_code in _REFUSED_STATUS:
                self._signed.pop(path, None)
                raise _PassingError(f"{answer.status_code} for a signed URL, which has expired", wait=1e-3)
            if answer.status_code in _PASSING_STATUS:
                raise _PassingError(f"{answer.status_code} {answer.reason_phrase}", _asked_wait(answer.headers))
            if answer.history and answer.status_code == 206:
                self._signed[path] = str(answer.url)
            yield answer


def _keep(path: Path, data: bytes) -> None:
    """Write whole or not at all: other processes look without a lock."""
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    draft.write_bytes(data)
    draft.replace(path)


def _check(where: str, answer, status: int) -> None:
    """Raise for an answer that is not of `status`."""
    if answer.status_code != status:
        answer.read()  # the server's own words go into the error
        hf_raise_for_status(answer)
        raise FetchError(f"{where}: the server sends whole files only (status {answer.status_code})")


def _asked_wait(headers) -> float | None:
    """Seconds from Retry-After, or from the Hub's `ratelimit: "resolvers";r=0;t=55`; None when neither says."""
    asked = headers.get("Retry-After", "").strip()
    if not asked.isdigit():
        found = re.search(r";r=0;t=(\d+)", headers.get("ratelimit", "").replace(" ", ""))
        asked = found[1] if found else ""
    return float(asked) if asked.isdigit() and int(asked) else None
