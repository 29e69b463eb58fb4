"""Byte ranges of files in a Hub repository, a local folder or any fsspec URL, through faults that pass.

One loop serves all of them: ask for a range, keep what arrives, and after a fault that may pass (429, 5xx, reset,
timeout, a body that ends early) wait and ask for the rest, from the last byte on. Waits double up to `MAX_WAIT`, or are
what Retry-After says. Without a new byte for `retry_seconds`, or at once for what no wait mends (no access, no such
file), it raises FetchError. Cost: one request a range; on the Hub the first range of a file pays the redirect to the
storage behind it, whose signed URL is then used directly until it is refused.

Rejected: fsspec for the Hub too (a listing for every forked worker, two requests a range, a broken range starts over),
and pyarrow's dataset scanner (no prefetch by default, buffers that are never released, aborts when left early).
"""

import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import fsspec
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status, validate_repo_id

T = TypeVar("T")
log = logging.getLogger(__name__)

READ_TIMEOUT = 20.0  # seconds of silence on a connection before the range is asked for again
MAX_WAIT = 30.0  # seconds between two attempts at most, unless Retry-After says more
_WORTH_SAYING = 5.0  # seconds of wait from which on it is logged
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_REFUSED_STATUS = frozenset({400, 401, 403, 404, 410})  # how storage answers to a signed URL that has expired
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NEVER_PASSES = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, OfflineModeIsEnabled)


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


class Source(Protocol):
    """Where a dataset's files are. Picklable; connections are made by the process that uses them."""

    name: str

    def read_file(self, path: str) -> bytes:
        """A whole small file. Raises FileNotFoundError when there is none, FetchError when it cannot be had."""
        ...

    def list_files(self, folder: str) -> list[tuple[str, int]]:
        """(path, bytes) of the Parquet files below a folder, sorted."""
        ...

    def read(self, path: str, offset: int, length: int, stop: Stop) -> bytes | bytearray:
        """`length` bytes of a file from `offset` on. Raises FetchError, or AbandonedError when `stop` is set."""
        ...


def open_source(repo_or_path: str, revision: str | None = None, *, retry_seconds: float) -> "Source":
    """The source that a name stands for: a local folder, `owner/name` or `hf://datasets/owner/name[@revision]` on the
    Hub, or any other fsspec URL. Raises ValueError for anything else."""
    text = os.fspath(repo_or_path)
    if text.startswith("hf://"):
        kind, _, rest = text.removeprefix("hf://").partition("/")
        repo, at, inline = rest.rstrip("/").partition("@")
        if kind != "datasets" or repo.count("/") != 1 or "/" in inline:
            raise ValueError(f"{text!r}: must be hf://datasets/owner/name, with @revision behind it if wanted")
        if at and revision not in (None, inline):
            raise ValueError(f"{text!r} and revision={revision!r}: two revisions; give one")
        return HubSource(repo, inline or revision or "main", retry_seconds)
    if "://" in text or os.path.isdir(text):
        if revision is not None:
            raise ValueError(f"revision={revision!r}: only repositories on the Hub have revisions, {text!r} is none")
        return FsspecSource(text if "://" in text else os.path.abspath(text), retry_seconds)
    if text.count("/") != 1:
        raise ValueError(f"{text!r}: is no folder here, no URL and no repository of the form owner/name")
    validate_repo_id(text)
    return HubSource(text, revision or "main", retry_seconds)


def _read_range(source, path: str, offset: int, length: int, stop: Stop) -> bytes | bytearray:
    """The loop of the module docstring over `source._chunks`, which yields bytes or raises."""
    buffer, done = bytearray(), 0
    patience = Patience(source.retry_seconds, stop, f"{source.name}: {path}, bytes {offset}–{offset + length - 1}")
    while done < length:
        try:
            for chunk in source._chunks(path, offset + done, length - done):
                if stop.is_set():
                    raise AbandonedError
                if len(chunk) > length - done:
                    raise FetchError(f"{source.name}: {path}: more bytes than were asked for")
                if len(chunk) == length:
                    return chunk  # all at once, as files come: no copy
                buffer = buffer or bytearray(length)
                buffer[done : done + len(chunk)] = chunk
                done += len(chunk)
                patience.progress()
            if done < length:
                raise _PassingError(f"the body ended {length - done} bytes early")
        except FetchError:
            raise
        except _NEVER_PASSES as fault:
            raise FetchError(f"{source.name}: {path}: {type(fault).__name__}: {fault}") from fault
        except (HTTPError, _PassingError, *source.passing) as fault:
            patience.wait(fault)
    return buffer


@dataclass
class FsspecSource:
    """A local folder or any URL that fsspec opens."""

    name: str
    retry_seconds: float
    passing = (OSError,)
    _opened: tuple | None = field(default=None, init=False, repr=False)

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

    def read(self, path: str, offset: int, length: int, stop: Stop) -> bytes | bytearray:
        return _read_range(self, path, offset, length, stop)

    def _chunks(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        fs, root = self._open()
        chunk = fs.cat_file(f"{root}/{path}", start=offset, end=offset + length)
        if len(chunk) < length:
            raise FetchError(f"{self.name}: {path}: ends {length - len(chunk)} bytes before the manifest says")
        yield chunk


@dataclass
class HubSource:
    """A dataset repository on the Hub at one commit."""

    repo: str
    revision: str
    retry_seconds: float
    passing = ()
    _signed: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    @property
    def name(self) -> str:
        return f"hf://datasets/{self.repo}@{self.revision[:12]}"

    def __getstate__(self):
        return {**self.__dict__, "_signed": {}}

    def pin(self, path: str) -> None:
        """Set `revision` to the commit it stands for. `path`: a file that is asked about, whose limits are wider than
        the API's; without it the API is asked. A full commit hash costs no request."""
        if _COMMIT.fullmatch(self.revision):
            return

        def commit() -> str | None:
            url = hf_hub_url(self.repo, path, repo_type="dataset", revision=self.revision)
            try:
                return get_hf_file_metadata(url, timeout=READ_TIMEOUT).commit_hash
            except EntryNotFoundError:
                return HfApi().dataset_info(self.repo, revision=self.revision, timeout=READ_TIMEOUT).sha

        found = self._retried(commit, f"revision {self.revision}")
        if not found:
            raise FetchError(f"{self.name}: the server names no commit for revision {self.revision!r}")
        self.revision = found

    def read_file(self, path: str) -> bytes:
        """Through huggingface_hub's cache on disk, which the ranks of a node share."""

        def download() -> str:
            try:
                return hf_hub_download(self.repo, path, repo_type="dataset", revision=self.revision)
            except LocalEntryNotFoundError as fault:  # how a failed request is reported when nothing is cached
                raise _PassingError(str(fault)) from fault

        with open(self._retried(download, path), "rb") as file:
            return file.read()

    def list_files(self, folder: str) -> list[tuple[str, int]]:
        def listed() -> list[tuple[str, int]]:
            tree = HfApi().list_repo_tree(
                self.repo, folder or None, recursive=True, revision=self.revision, repo_type="dataset"
            )
            return sorted((item.path, item.size) for item in tree if item.path.endswith(".parquet"))

        return self._retried(listed, f"files of {folder}/")

    def _retried(self, call: Callable[[], T], what: str) -> T:
        patience = Patience(self.retry_seconds, Stop(), f"{self.name}: {what}")
        while True:
            try:
                return call()
            except EntryNotFoundError as fault:
                raise FileNotFoundError(f"{self.name}: {what}: no such file") from fault
            except HfHubHTTPError as fault:
                if fault.response.status_code not in _PASSING_STATUS:
                    raise FetchError(f"{self.name}: {what}: {fault}") from fault
                patience.wait(_PassingError(str(fault), _asked_wait(fault.response.headers)))
            except (HTTPError, _PassingError) as fault:
                patience.wait(fault)

    def read(self, path: str, offset: int, length: int, stop: Stop) -> bytes | bytearray:
        return _read_range(self, path, offset, length, stop)

    def _chunks(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        signed = self._signed.get(path)
        resolve = hf_hub_url(self.repo, path, repo_type="dataset", revision=self.revision)
        url = signed or resolve
        headers = {"Range": f"bytes={offset}-{offset + length - 1}", "Accept-Encoding": "identity"}
        if urlsplit(url)[:2] == urlsplit(resolve)[:2]:  # a token never leaves the Hub
            headers = build_hf_headers(library_name="packing-udfs") | headers
        with get_session().stream("GET", url, headers=headers, timeout=READ_TIMEOUT, follow_redirects=True) as answer:
            if signed and answer.status_code in _REFUSED_STATUS:
                self._signed.pop(path, None)
                raise _PassingError(f"{answer.status_code} for a signed URL, which has expired", wait=1e-3)
            if answer.status_code in _PASSING_STATUS:
                raise _PassingError(f"{answer.status_code} {answer.reason_phrase}", _asked_wait(answer.headers))
            _check_range(self, path, offset, answer)
            if answer.history:
                self._signed[path] = str(answer.url)
            yield from answer.iter_raw()


def _check_range(source: HubSource, path: str, offset: int, answer) -> None:
    if answer.status_code != 206:
        answer.read()  # the server's own words go into the error
        try:
            hf_raise_for_status(answer)
        except HfHubHTTPError as fault:
            raise FetchError(f"{source.name}: {path}: {fault}") from fault
        raise FetchError(f"{source.name}: {path}: the server sends whole files only (status {answer.status_code})")
    start = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    if start != str(offset):
        raise FetchError(f"{source.name}: {path}: asked for byte {offset} on, got {start or 'no Content-Range'}")


def _asked_wait(headers) -> float | None:
    """Seconds from Retry-After, or from the Hub's `ratelimit: "resolvers";r=0;t=55`; None when neither says."""
    asked = headers.get("Retry-After", "").strip()
    if not asked.isdigit():
        found = re.search(r";r=0;t=(\d+)", headers.get("ratelimit", "").replace(" ", ""))
        asked = found[1] if found else ""
    return float(asked) if asked.isdigit() and int(asked) else None
