"""Sources: pinned to a commit, checked and counted before Spark reads a byte.

`pin` finds all that can be wrong with a source in one place, and says what would be right. Rows are counted from the
files at the pinned commit (`jobs.sources.row_counts` says what that costs). The ledger must add up to them, so they
are not taken from the job's own reading. This module pins datasets on the Hub, `jobs.sources.parquet_folder` folders.
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import BinaryIO, TypeVar, cast

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import get_dataset_config_names, load_dataset_builder
from datasets.exceptions import DatasetsError
from datasets.packaged_modules.parquet.parquet import Parquet
from huggingface_hub import HfApi, HfFileSystem, constants
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark_huggingface.huggingface_source import HuggingFaceSource

from jobs import adapters
from jobs.adapters.copies import with_copies
from jobs.output.retries import one_line, retrying
from jobs.sources import parquet_folder
from jobs.sources.hub_rows import HubReader, data_files, features_of, open_dataset, path_in_repo, row_files
from jobs.sources.huggingface import PROVENANCE, HuggingFace
from jobs.sources.licenses import listed as listed_licenses
from jobs.sources.parquet_columns import FooterError, as_spark, read_footer, use_of_files
from jobs.sources.pinned import PinnedSource, SourceError, SourceFile, refuse_mixed_system, use_of
from jobs.sources.reading import RowReader, plain_schema
from jobs.sources.row_counts import CountError, count_rows
from packing_udfs.config import Source
from packing_udfs.storage.folders import is_folder

__all__ = ["check_unchanged", "open_reader", "pin", "read", "to_samples"]

T = TypeVar("T")
_THREADS = 16  # of files counted at a time
_FOOTER_BLOCK = 1 << 16  # bytes read at once from a file's end; a footer rarely needs more
# What `datasets` raises for no files, or for files of another format than their names say.
_DATASETS_ERRORS = (DatasetsError, FileNotFoundError, ValueError, RuntimeError, IndexError, pa.ArrowException)


def pin(source: Source, field: str, retry_seconds: float = 20) -> PinnedSource:
    """Resolve a source's revision to a commit, find its files, choose its adapter and count its rows.

    `field` names the source in messages (`sources.0`). A Hub that is busy or away is asked again for `retry_seconds`.
    Raises SourceError.
    """
    if is_folder(source.repo):
        return parquet_folder.pin(source, field)
    return retrying(retry_seconds)(_pin, source, field)


def read(spark: SparkSession, pinned: PinnedSource, seed: int = 0, *, drops_duplicates: bool = False) -> DataFrame:
    """A pinned source's rows as samples (`contract.SAMPLE_SCHEMA`), with its limit and weight by hash of `seed`.

    `drops_duplicates`: the job drops duplicates in the end, so repeats need not bring their images. Where a limit or a
    weight asks for a row's hash, they bring them.
    """
    if is_folder(pinned.source.repo):
        return to_samples(parquet_folder.rows(spark, pinned), pinned, seed)
    options = {"provenance": "true", "said": json.dumps(pinned.said)} | _options(pinned.source, pinned.commit)
    if drops_duplicates and not pinned.source.limit and pinned.source.weight == 1.0:
        options["empty_repeats"] = "true"
    schema = StructType(pinned.read_schema.fields + PROVENANCE)
    return to_samples(spark.read.format(HuggingFace.name()).schema(schema).options(**options).load(), pinned, seed)


def to_samples(rows: DataFrame, pinned: PinnedSource, seed: int) -> DataFrame:
    """What `read` makes of a source's rows with their provenance."""
    samples = adapters.to_samples(rows, pinned.adapter, pinned.source, pinned.kept)
    return with_copies(samples, pinned.source, pinned.num_rows, seed)


def check_unchanged(pinned: PinnedSource) -> None:
    """Raises SourceError when a folder has changed since it was pinned. A commit on the Hub never changes."""
    if is_folder(pinned.source.repo):
        parquet_folder.check_unchanged(pinned)


def open_reader(pinned: PinnedSource) -> RowReader:
    """For reading some of a source without Spark: of a repository, what the tasks of `read` read with."""
    if is_folder(pinned.source.repo):
        paths = [file.path for file in pinned.files]
        return parquet_folder.FolderReader(pinned.source.repo, paths, pinned.read_schema, pinned.said)
    opened = open_dataset(_options(pinned.source, pinned.commit))
    return HubReader(opened, to_arrow_schema(pinned.read_schema), said=pinned.said)


def _options(source: Source, commit: str) -> dict[str, str]:
    options = {"path": source.repo, "split": source.split, "revision": commit}
    return options | ({"config": source.config} if source.config else {})


def _pin(source: Source, field: str) -> PinnedSource:
    commit, licenses = _commit(source, field)
    opened = _open(source, field, commit)
    addresses = row_files(opened)
    place, fs = f"{field}.repo: {source.repo}", HfFileSystem()
    zipped = next((path_in_repo(file) for file in data_files(opened) if file.lower().endswith(".zip")), None)
    if zipped:
        raise SourceError(f"{place}: {zipped} is not read: unpack it, or store its samples as Parquet or in a tar")
    if not addresses:
        raise SourceError(f"{place} is a folder without metadata.csv, .jsonl or .parquet beside its files")
    if isinstance(opened.builder, Parquet):
        footers = _of_each(addresses, partial(_footer, fs), place)
        schema, use = use_of_files(
            {path: footer.schema.to_arrow_schema() for path, footer in footers.items()}, source, field
        )
        num_rows = {path: footer.num_rows for path, footer in footers.items()}
    else:
        features = features_of(opened)
        kinds = plain_schema(features, list(features))
        schema = as_spark(dict(zip(kinds.names, kinds.types, strict=True)))
        use = use_of(schema, source, field)
        refuse_mixed_system(((f.name, f.type) for f in features.arrow_schema), use, place)
        num_rows = _of_each(addresses, partial(count_rows, fs), place)
    sizes = [fs.info(file.removeprefix("hf://"))["size"] for file in data_files(opened)]
    if len(addresses) < len(sizes):  # a folder of images: all that lies in it counts as the first metadata file's
        sizes = [sum(sizes), *[0] * (len(addresses) - 1)]
    files = tuple(SourceFile(path, size, num) for size, (path, num) in zip(sizes, num_rows.items(), strict=True))
    return PinnedSource(source, commit, files, licenses=licenses, schema=schema, **vars(use))


def _of_each(addresses: Sequence[str], look: Callable[[str], T], place: str) -> dict[str, T]:
    """What `look` finds of each file, by its path. Raises SourceError, which names the file."""

    def find(address: str) -> tuple[str, T]:
        path = path_in_repo(address)
        try:
            return path, look(address)
        except (CountError, FooterError) as error:
            raise SourceError(f"{place}: {path}: {error}") from None

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(pool.map(find, addresses))


def _footer(fs: HfFileSystem, address: str) -> pq.FileMetaData:
    with fs.open(address.removeprefix("hf://"), block_size=_FOOTER_BLOCK) as file:
        return read_footer(cast(BinaryIO, file))


def _commit(source: Source, field: str) -> tuple[str, tuple[str, ...]]:
    """The commit of a source's revision, and the licences in its card."""
    api = HfApi()
    try:
        info = api.dataset_info(source.repo, revision=source.revision)
        assert info.sha, f"the Hub names no commit of {source.repo}"
        return info.sha, tuple(listed_licenses(info.card_data.to_dict() if info.card_data else {}))
    except RevisionNotFoundError:
        refs = api.list_repo_refs(source.repo, repo_type="dataset")
        names = ", ".join(ref.name for ref in [*refs.branches, *refs.tags])
        raise SourceError(
            f"{field}.revision: {source.repo} has no revision {source.revision!r}; it has {names}"
        ) from None
    except RepositoryNotFoundError:
        raise SourceError(
            f"{field}.repo: no dataset {source.repo} at {constants.ENDPOINT}, or HF_TOKEN may not read it"
        ) from None
    except (HfHubHTTPError, httpx2.HTTPError) as error:
        raise SourceError(
            f"{field}.repo: {source.repo} cannot be read at {constants.ENDPOINT}: {one_line(error)}"
        ) from None


def _open(source: Source, field: str, commit: str) -> HuggingFaceSource:
    try:
        _check_config_and_split(source, field, commit)
        return open_dataset(_options(source, commit))
    except SourceError:
        raise
    except (*_DATASETS_ERRORS, OSError) as error:
        if "is a gated dataset" in str(error):
            raise SourceError(
                f"{field}.repo: {source.repo} is gated: ask for access at {constants.ENDPOINT}/datasets/{source.repo}, "
                "with the account whose token is in HF_TOKEN"
            ) from None
        unsound = _unsound_parquet(source, commit)
        if unsound:
            raise SourceError(f"{field}.repo: {source.repo}: {unsound}") from None
        if not isinstance(error, _DATASETS_ERRORS):
            raise
        raise SourceError(f"{field}.repo: {source.repo} cannot be read as a dataset: {one_line(error)}") from None


def _unsound_parquet(source: Source, commit: str) -> str:
    """The first Parquet file without a sound footer, and what it has; "" where all are sound.

    For the message alone: `datasets` does not name the file that it cannot read.
    """
    fs, paths = HfFileSystem(), HfApi().list_repo_files(source.repo, revision=commit, repo_type="dataset")
    for path in (path for path in paths if path.endswith(".parquet")):
        try:
            _footer(fs, f"datasets/{source.repo}@{commit}/{path}")
        except FooterError as error:
            return f"{path}: {error}"
    return ""


def _check_config_and_split(source: Source, field: str, commit: str) -> None:
    names = get_dataset_config_names(source.repo, revision=commit)
    if source.config is not None and source.config not in names:
        raise SourceError(
            f"{field}.config: {source.repo} has no configuration {source.config!r}; it has {', '.join(names)}"
        )
    if source.config is None and len(names) > 1 and "default" not in names:
        raise SourceError(f"{field}.config: {source.repo} has several configurations; name one of {', '.join(names)}")
    splits = list(load_dataset_builder(source.repo, source.config, revision=commit).config.data_files or {})
    if source.split not in splits:
        raise SourceError(f"{field}.split: {source.repo} has no split {source.split!r}; it has {', '.join(splits)}")
