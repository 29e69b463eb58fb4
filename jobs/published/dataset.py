"""A packed dataset as it is published, on the Hub or in a folder: its files, manifests, report and packs.

Parquet is read by columns and row groups, so only what is asked for is fetched; images a row group at a time.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, BinaryIO, cast

import fsspec
import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem
from huggingface_hub import HfApi, HfFileSystem, constants
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from packing_udfs import contract, manifest
from packing_udfs.contract import REPORT
from packing_udfs.storage.folder_state import places
from packing_udfs.storage.folders import locate
from packing_udfs.storage.hub_errors import one_line

__all__ = ["UNREADABLE", "Packed", "PackedError", "open_packed"]

UNREADABLE = (ValueError, OSError, ImportError, pa.ArrowException, httpx2.HTTPError)
"""The errors of a dataset or file system that is damaged or out of reach, and of a file that cannot be written."""


class PackedError(ValueError):
    """A dataset that does not exist or was not packed by this project; the message names it and says what to do."""


@dataclass(frozen=True)
class Packed:
    """A packed dataset at one commit."""

    name: str  # as the user gave it
    commit: str | None  # None for a folder
    fs: AbstractFileSystem
    root: str
    places: Mapping[str, str] = field(default_factory=dict)  # path → stored name, where they differ (`folder_state`)

    @cached_property
    def paths(self) -> dict[str, int]:
        """Bytes of every file by its path in the repository, sorted."""
        found = cast(dict[str, dict[str, Any]], self.fs.find(self.root, detail=True))
        sizes = {path.removeprefix(self.root).lstrip("/"): entry["size"] for path, entry in found.items()}
        sizes = {path: sizes[file] for path, file in self.places.items() if file in sizes} if self.places else sizes
        return {path: sizes[path] for path in sorted(sizes) if "/." not in f"/{path}"}  # no hidden file or folder

    @cached_property
    def splits(self) -> list[str]:
        """Splits that have a manifest."""
        prefix, suffix = contract.MANIFEST_JSON.split("{split}")
        paths = [path for path in self.paths if path.startswith(prefix) and path.endswith(suffix)]
        return [path.removeprefix(prefix).removesuffix(suffix) for path in paths]

    def read(self, path: str) -> bytes:
        """A whole file. Raises PackedError when it does not exist."""
        if path not in self.paths:
            raise PackedError(f"{self.name}: has no {path}; is it a dataset that jobs.pack has published?")
        return cast(bytes, self.fs.cat_file(self._address(path)))

    def _address(self, path: str) -> str:
        return f"{self.root}/{self.places.get(path, path)}"

    def open(self, path: str) -> BinaryIO:
        """A file to read and seek in."""
        return cast(BinaryIO, self.fs.open(self._address(path), "rb", block_size=1 << 20))

    def manifest(self, split: str) -> manifest.Manifest:
        """A split's manifest. Raises PackedError when there is none, ContractError when it is damaged."""
        if split not in self.splits:
            raise PackedError(f"{self.name}: has no packed split {split!r}; it has {', '.join(self.splits) or 'none'}")
        return manifest.read(self.read, split)

    def report(self) -> dict[str, Any]:
        """The last run's report as JSON values. Raises PackedError when there is none."""
        data = self.read(REPORT)
        try:
            return json.loads(data)
        except ValueError as error:
            raise PackedError(f"{self.name}: {REPORT} is no JSON: {error}") from None

    def row_group(self, file: str, index: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Packs of one row group, all columns or some."""
        with self.open(file) as source, pq.ParquetFile(source, pre_buffer=True) as parquet:
            return parquet.read_row_group(index, columns=columns, use_threads=False)

    def table(self, file: str) -> pa.Table:
        """A whole Parquet file, for small ones."""
        return pq.read_table(io.BytesIO(self.read(file)))


def open_packed(repo_or_path: str, revision: str | None = None) -> Packed:
    """A packed dataset in a folder (path or URL), or owner/name on the Hub at a branch, tag or commit (default main).

    Raises PackedError when there is none.
    """
    try:
        found = locate(repo_or_path, revision)
    except ValueError as error:
        raise PackedError(str(error)) from None
    if found.is_folder:
        try:
            fs, root = fsspec.url_to_fs(found.name)
            root = root.rstrip("/")
            return Packed(repo_or_path, None, fs, root, places(lambda name: fs.cat_file(f"{root}/{name}")))
        except (ImportError, OSError) as error:
            raise PackedError(f"{repo_or_path}: cannot be opened as a folder: {error}") from None
    try:
        commit = HfApi().dataset_info(found.name, revision=found.revision).sha
    except RepositoryNotFoundError:
        raise PackedError(
            f"{repo_or_path}: is no folder, and no dataset owner/name at {constants.ENDPOINT} that HF_TOKEN may read"
        ) from None
    except RevisionNotFoundError:
        raise PackedError(f"{repo_or_path}: has no branch, tag or commit {found.revision!r}") from None
    except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
        raise PackedError(f"{repo_or_path}: {constants.ENDPOINT} does not give it: {one_line(error)}") from None
    return Packed(repo_or_path, commit, HfFileSystem(), f"datasets/{found.name}@{commit}")
