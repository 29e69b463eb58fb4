"""Byte ranges of files in a Hub repository.

The first range of a file follows the Hub's redirect to the storage behind it. Later ranges use that signed URL until
the storage refuses it. Whole small files take one request per node: huggingface_hub's folder for assets keeps them, by
commit.

Rejected: fsspec for the Hub too (every forked worker lists the files, two requests per range, a broken range starts
over), and `hf_hub_download` for the small files (two requests each, from every rank that starts before the first one
has them).
"""

import http.client
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx2
from huggingface_hub import HfApi, RepoFile, cached_assets_path, constants, hf_hub_url
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError
from huggingface_hub.utils import WeakFileLock, build_hf_headers

from packing_udfs.storage import http as http_module
from packing_udfs.storage.byte_source import AbsentError, FetchError, PassingError, Source
from packing_udfs.storage.folders import locate
from packing_udfs.storage.hub_errors import one_line
from packing_udfs.storage.retry_policy import PASSING_STATUS, STALE_STATUS, asked_pause

__all__ = ["HubSource", "open_source"]

_NO_SUCH_RANGE = 416
_REDIRECTS, _MAX_REDIRECTS = frozenset({301, 302, 303, 307, 308}), 5
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubSource(Source):
    """A dataset repository on the Hub at one commit: the first answer says which commit `revision` is."""

    def __init__(self, repo: str, revision: str, *args, **options):
        super().__init__(f"hf://datasets/{repo}", *args, **options)
        self.repo, self.revision = repo, revision
        self._signed: dict[str, str] = {}  # path → URL that the Hub redirected to

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_signed": {}}  # a signed URL gives access to everyone who has it

    @property
    def is_pinned(self) -> bool:
        return _COMMIT.fullmatch(self.revision) is not None

    def read_file(self, path: str) -> bytes:
        """One request per node: the first rank keeps the file for the others. A branch always needs a request."""
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
            files = [item for item in tree if isinstance(item, RepoFile) and item.path.endswith(".parquet")]
        except EntryNotFoundError:
            return []
        except (HfHubHTTPError, httpx2.TransportError) as error:
            response = getattr(error, "response", None)
            if response is not None and response.status_code not in PASSING_STATUS:
                raise FetchError(f"{self.name}: {folder}: {one_line(error)}") from error
            raise PassingError(f"{type(error).__name__}: {one_line(error)}") from error
        return sorted((file.path, file.size) for file in files)

    def _kept(self, path: str) -> Path | None:
        """Where a whole file of this commit is kept for the node's other ranks; None if the folder is not writable."""
        assets = constants.HF_ASSETS_CACHE
        try:
            folder = cached_assets_path("packing-udfs", namespace=self.repo, subfolder=self.revision, assets_dir=assets)
        except (OSError, ValueError):  # ValueError: there is a file in its place
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
        """The answer with this status to a request for a file, from its signed URL if that is known."""
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
                # `read1` does not wait for more than has come. Mostly that is all, and the connection can be kept.
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
    """The source of a dataset by its name: see `locate`. `options` are those of Source. Raises ValueError."""
    found = locate(repo_or_path, revision)
    if found.is_folder:
        return Source(found.name, **options)
    return HubSource(found.name, found.revision or "main", **options)


def _keep(path: Path, data: bytes) -> None:
    """Write a file atomically, since other processes look without a lock. A full disk is no error."""
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
