"""Byte ranges of files in a Hub repository, and which source a name stands for.

The first range of a file pays the redirect to the storage behind it, whose signed URL is then used directly until it is
refused. Whole small files are one request a node: they are kept in huggingface_hub's folder for assets, by commit.

Rejected: fsspec for the Hub too (a listing for every forked worker, two requests a range, a broken range starts over),
and `hf_hub_download` for the small files (two requests each, by every rank that starts before the first has them).
"""

import http.client
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import httpx2
from huggingface_hub import HfApi, cached_assets_path, constants, hf_hub_url
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError
from huggingface_hub.utils import WeakFileLock, build_hf_headers, validate_repo_id

from packing_udfs.storage import http as http_module
from packing_udfs.storage.byte_source import AbsentError, FetchError, PassingError, Source
from packing_udfs.storage.retry_policy import PASSING_STATUS, STALE_STATUS, asked_pause

_NO_SUCH_RANGE = 416
_REDIRECTS, _MAX_REDIRECTS = frozenset({301, 302, 303, 307, 308}), 5
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_URL = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/[^/@]+/[^/@]+|[^/@]+))?/?")


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
        is_pinned = self.is_pinned
        kept = self._kept(path) if is_pinned else None
        with WeakFileLock(f"{kept}.lock") if kept else nullcontext():
            if kept and kept.exists():
                return kept.read_bytes()
            data = self._retried(f"{path} at {self.revision}", lambda _: self._whole(path))
            if not self.is_pinned:
                raise FetchError(f"{self.name}: the server names no commit for revision {self.revision!r}")
            if kept := kept or self._kept(path):
                _keep(kept, data)
            return data

    def forget(self, *paths: str) -> bool:
        kept = [file for file in map(self._kept, paths) if file and file.exists()]
        for file in kept:
            file.unlink(missing_ok=True)
        return bool(kept)

    def list_files(self, folder: str) -> list[tuple[str, int]]:
        return self._retried(folder, lambda _: self._listed(folder))

    def _listed(self, folder: str) -> list[tuple[str, int]]:
        tree = HfApi().list_repo_tree(self.repo, folder, recursive=True, revision=self.revision, repo_type="dataset")
        try:
            return sorted((item.path, item.size) for item in tree if item.path.endswith(".parquet"))
        except EntryNotFoundError:
            return []
        except HfHubHTTPError as error:
            if error.response is not None and error.response.status_code not in PASSING_STATUS:
                raise FetchError(f"{self.name}: {folder}: {' '.join(str(error).split())}") from error
            raise PassingError(" ".join(str(error).split())) from error
        except httpx2.TransportError as error:
            raise PassingError(f"{type(error).__name__}: {error}") from error

    def _kept(self, path: str) -> Path | None:
        """Where a whole file of this commit is kept for the node's other ranks; None where nothing can be."""
        assets = constants.HF_ASSETS_CACHE
        try:
            folder = cached_assets_path("packing-udfs", namespace=self.repo, subfolder=self.revision, assets_dir=assets)
        except (OSError, ValueError):  # ValueError: a file is in the folder's place
            return None
        return folder / path.replace("/", "--") if os.access(folder, os.W_OK) else None

    def _whole(self, path: str) -> bytes:
        with self._get(path, 200) as answer:
            if (encoding := answer.headers.get("Content-Encoding", "identity")) != "identity":
                raise FetchError(f"{self.name}: {path}: the server sent {encoding}, which was not asked for")
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
                num = http_module.receive(answer, view[done : done + self.block_size])
                if not num:
                    raise PassingError(f"the body ended {len(view) - done} bytes early")
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
            with http_module.get(url, headers | own) as answer:
                commit = answer.headers.get("X-Repo-Commit", "")
                if is_hub and not self.is_pinned and _COMMIT.fullmatch(commit):
                    self.revision = commit
                if answer.status == status:
                    if url != resolve and status == 206:
                        self._signed[path] = url
                    yield answer
                    return
                # `read1`: what has come, and be it little; all of it, mostly, so that the connection can be kept.
                body = answer.read1(1000).decode(errors="replace") if answer.status >= 400 else ""
                if answer.status in _REDIRECTS and (to := answer.headers.get("Location")):
                    url = urljoin(url, to)
                    continue
            what = f"{answer.status} {answer.reason}: {answer.headers.get('X-Error-Message') or body}"
            if signed != resolve and answer.status in STALE_STATUS:
                self._signed.pop(path, None)
                raise PassingError(f"{what}, for a signed URL, which has expired", wait=0.0)
            if answer.status in PASSING_STATUS:
                raise PassingError(what, asked_pause(answer.headers))
            if answer.headers.get("X-Error-Code") == "EntryNotFound":
                raise FileNotFoundError(f"{self.name}: {path}: {what}")
            error = AbsentError if answer.status == _NO_SUCH_RANGE else FetchError
            raise error(f"{self.name}: {path} at {self.revision}: {what}, where {status} was expected")
        raise FetchError(f"{self.name}: {path}: more than {_MAX_REDIRECTS} redirects")


def open_source(repo_or_path: str, revision: str | None = None, **options) -> Source:
    """The source that a name stands for: a local folder, `owner/name` or `hf://datasets/owner/name[@revision]` on the
    Hub, or any other fsspec URL. `options` are those of Source. Raises ValueError for anything else."""
    text = os.fspath(repo_or_path)
    if text.startswith("hf://"):
        if not (found := _HUB_URL.fullmatch(text)):
            raise ValueError(f"{text!r}: must be hf://datasets/owner/name, with @revision behind it if wanted")
        named = unquote(found[2]) if found[2] else None
        if named and revision not in (None, named):
            raise ValueError(f"{text!r} and revision={revision!r}: two revisions; give one")
        return HubSource(found[1], named or revision or "main", **options)
    if "://" in text or os.path.isdir(text):
        if revision is not None:
            raise ValueError(f"revision={revision!r}: only repositories on the Hub have revisions, {text!r} is none")
        return Source(text if "://" in text else os.path.abspath(text), **options)
    if text.count("/") != 1 or text.startswith(("/", ".", "~")):
        raise ValueError(f"{text!r}: is no folder here, no URL and no repository of the form owner/name")
    validate_repo_id(text)
    return HubSource(text, revision or "main", **options)


def _keep(path: Path, data: bytes) -> None:
    """Write whole or not at all, since other processes look without a lock; not at all where there is no room."""
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
