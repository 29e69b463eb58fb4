"""Sources: pinned to a commit, checked and counted before Spark reads a byte. Those on the Hub; folders in
`jobs.sources.parquet_folder`.

`pin` answers all that can be wrong with a source in one place, with what would be right. Rows are counted from the
files at the pinned commit (Parquet footers, tar headers, lines; `jobs.sources.row_counts` says what that costs): they
are what the ledger must add up to, so they are not taken from the job's own reading.
"""

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features, get_dataset_config_names, load_dataset_builder
from datasets.exceptions import DatasetsError
from datasets.packaged_modules.parquet.parquet import Parquet
from datasets.table import CastError, table_cast
from huggingface_hub import HfApi, HfFileSystem, constants
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark_huggingface.huggingface_source import HuggingFaceSource

from jobs import adapters
from jobs.adapters.copies import with_copies
from jobs.output.retries import one_line, retrying
from jobs.sources import parquet_folder
from jobs.sources.hub_rows import RepairedReader, path_in_repo, plain_schema, row_files
from jobs.sources.huggingface import HuggingFace
from jobs.sources.licenses import listed as listed_licenses
from jobs.sources.pinned import PinnedSource, SourceError, SourceFile
from jobs.sources.row_counts import CountError, count_rows
from packing_udfs.config import Source
from packing_udfs.storage.folders import is_folder

COUNT_THREADS = 16
FOOTER_BLOCK = 1 << 16  # bytes read at once from a file's end; a footer rarely needs more
# What `datasets` raises for files that are not what their names say, or for none.
_DATASETS_ERRORS = (DatasetsError, FileNotFoundError, ValueError, RuntimeError, IndexError, pa.ArrowException)


def pin(source: Source, field: str, retry_seconds: float = 20) -> PinnedSource:
    """Resolve a source's revision to a commit, find its files, choose its adapter and count its rows.

    `field` names the source in messages (`sources.0`); a Hub that is busy or away is asked again for `retry_seconds`.
    Raises SourceError.
    """
    if is_folder(source.repo):
        return parquet_folder.pin(source, field)
    return retrying(retry_seconds)(_pin, source, field)


def _pin(source: Source, field: str) -> PinnedSource:
    commit, licenses = _commit(source, field)
    try:
        _check_config_and_split(source, field, commit)
        opened = HuggingFaceSource(_options(source, commit))
    except SourceError:
        raise
    except _DATASETS_ERRORS as error:
        if "is a gated dataset" in str(error):
            raise SourceError(
                f"{field}.repo: {source.repo} is gated: ask for access at {constants.ENDPOINT}/datasets/{source.repo}, "
                "with the account whose token is in HF_TOKEN"
            ) from None
        raise SourceError(f"{field}.repo: {source.repo} cannot be read as a dataset: {one_line(error)}") from None
    features = opened.streaming_dataset.features
    try:
        adapter = adapters.choose(from_arrow_schema(plain_schema(features, list(features))), source)
    except adapters.ColumnError as error:
        raise SourceError(f"{field}.{error.field}: {source.repo}: {error}") from None
    pinned = PinnedSource(source, commit, (), adapter, licenses)
    if pinned.has_videos and importlib.util.find_spec("av") is None:
        raise SourceError(f"{field}.video: {source.repo} has videos, which need PyAV: pip install packing-udfs[video]")
    return PinnedSource(source, commit, _count(opened, field, pinned), adapter, licenses)


def read(spark: SparkSession, pinned: PinnedSource, seed: int = 0, *, drops_duplicates: bool = False) -> DataFrame:
    """A pinned source's rows as samples (`contract.SAMPLE_SCHEMA`), with its limit and weight by hash of `seed`.

    `drops_duplicates`: whether duplicates are dropped in the end, so that repeats need not bring their images. Where a
    limit or a weight asks for a row's hash, they do.
    """
    if is_folder(pinned.source.repo):
        return to_samples(parquet_folder.rows(spark, pinned), pinned, seed)
    options = {"provenance": "true", "columns": json.dumps(pinned.columns)}
    options |= _options(pinned.source, pinned.commit)
    if drops_duplicates and not pinned.source.limit and pinned.source.weight == 1.0:
        options["empty_repeats"] = "true"
    return to_samples(spark.read.format(HuggingFace.name()).options(**options).load(), pinned, seed)


def to_samples(rows: DataFrame, pinned: PinnedSource, seed: int) -> DataFrame:
    """What `read` makes of a source's rows with their provenance."""
    samples = adapters.to_samples(rows, pinned.adapter, pinned.source)
    return with_copies(samples, pinned.source, pinned.num_rows, seed)


def check_unchanged(pinned: PinnedSource) -> None:
    """Raises SourceError when a source is no longer what it was when it was pinned; on the Hub a commit always is."""
    if is_folder(pinned.source.repo):
        parquet_folder.check_unchanged(pinned)


def open_reader(pinned: PinnedSource) -> RepairedReader | parquet_folder.FolderReader:
    """For reading some of a source without Spark: of a repository, what the tasks of `read` read with."""
    if is_folder(pinned.source.repo):
        return parquet_folder.FolderReader(pinned)
    return RepairedReader(HuggingFaceSource(_options(pinned.source, pinned.commit)), pinned.columns, True)


def _options(source: Source, commit: str) -> dict[str, str]:
    options = {"path": source.repo, "split": source.split, "revision": commit}
    return options | ({"config": source.config} if source.config else {})


def _commit(source: Source, field: str) -> tuple[str, tuple[str, ...]]:
    api = HfApi()
    try:
        info = api.dataset_info(source.repo, revision=source.revision)
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


def _count(opened: HuggingFaceSource, field: str, pinned: PinnedSource) -> tuple[SourceFile, ...]:
    """The source's files with their sizes and rows. Raises SourceError for a file that does not fit the others."""
    repo, fs, addresses = pinned.source.repo, HfFileSystem(), row_files(opened)
    if not addresses:
        raise SourceError(f"{field}.repo: {repo} is a folder without metadata.csv, .jsonl or .parquet beside its files")
    features = opened.streaming_dataset.features
    wanted = Features({name: features[name] for name in pinned.columns})
    sizes = _sizes(opened, fs, addresses)

    def count(address: str) -> int:
        try:
            return (
                _check_parquet(fs, address, wanted) if isinstance(opened.builder, Parquet) else count_rows(fs, address)
            )
        except (CountError, pa.ArrowException, CastError, TypeError) as error:
            raise SourceError(f"{field}.repo: {repo}: {path_in_repo(address)}: {error}") from None

    with ThreadPoolExecutor(COUNT_THREADS) as pool:
        counts = list(pool.map(count, addresses))
    files = zip(addresses, sizes, counts, strict=True)
    return tuple(SourceFile(path_in_repo(address), size, num_rows) for address, size, num_rows in files)


def _sizes(opened: HuggingFaceSource, fs: HfFileSystem, addresses: list[str]) -> list[int]:
    """Bytes of each file; of a folder all that lie in it count as the first metadata file's."""
    all_files = [str(file) for file in opened.builder.config.data_files[opened.split]]
    sizes = [fs.info(file.removeprefix("hf://"))["size"] for file in all_files]
    return sizes if len(addresses) == len(sizes) else [sum(sizes), *[0] * (len(addresses) - 1)]


def _check_parquet(fs: HfFileSystem, address: str, wanted: Features) -> int:
    """Rows of a Parquet file whose columns can be read as `wanted`. Raises CountError, CastError or TypeError."""
    with fs.open(address.removeprefix("hf://"), block_size=FOOTER_BLOCK) as file:
        metadata = pq.read_metadata(file)
    schema = metadata.schema.to_arrow_schema()
    missing = [name for name in wanted if name not in schema.names and not name.endswith("_ratings")]
    if missing:
        lacks = f"it lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
        raise CountError(f"{lacks}, which other files have; it has {', '.join(schema.names)}")
    there = [name for name in wanted if name in schema.names]
    empty = pa.schema([schema.field(name) for name in there]).empty_table()
    table_cast(empty, Features({name: wanted[name] for name in there}).arrow_schema)
    return metadata.num_rows
