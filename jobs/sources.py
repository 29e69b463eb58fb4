"""Sources on the Hub: pinned to a commit, checked and counted before Spark reads a byte.

`pin` answers all that can be wrong with a source in one place, with what would be right. The row counts come from
the Parquet footers at the pinned commit: they are what the ledger must add up to, so they are not taken from the
job's own reading.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import get_dataset_config_names, load_dataset_builder
from huggingface_hub import HfApi, HfFileSystem, constants
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from pyspark.sql import DataFrame, SparkSession

from jobs import adapt
from jobs.huggingface_source import data_files
from packing_udfs.config import Source

FOOTER_THREADS = 16
FOOTER_BLOCK = 1 << 16  # bytes read at once from a file's end; a footer rarely needs more


class SourceError(ValueError):
    """A source that cannot be read; the message names the field, the value and what exists."""


@dataclass(frozen=True)
class SourceFile:
    """A file of a source: its path in the repository, size in bytes and number of rows."""

    path: str
    num_bytes: int
    num_rows: int


@dataclass(frozen=True)
class PinnedSource:
    """A source at one commit."""

    source: Source
    commit: str
    files: tuple[SourceFile, ...]
    licenses: tuple[str, ...] = ()  # as its card has them

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.files)

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)


def pin(source: Source, field: str) -> PinnedSource:
    """Resolve a source's revision to a commit, find its files and count their rows.

    `field` names the source in messages (`sources.0`). Raises SourceError.
    """
    commit, licenses = _commit(source, field)
    builder = _builder(source, field, commit)
    splits = list(builder.config.data_files or {})
    if source.split not in splits:
        raise SourceError(f"{field}.split: {source.repo} has no split {source.split!r}; it has {', '.join(splits)}")
    paths = data_files(builder, source.split)
    other = [path for path in paths if not path.endswith(".parquet")]
    if other:
        raise SourceError(f"{field}.repo: {source.repo} has files that are not Parquet, such as {other[0]}")
    fs = HfFileSystem()
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        described = list(pool.map(lambda path: _describe(fs, source, commit, path), paths))
    for file, schema in described:
        missing = adapt.missing_columns(schema.names)
        if missing:
            raise SourceError(
                f"{field}: {source.repo} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; "
                f"{file.path} has {', '.join(schema.names)}"
            )
    return PinnedSource(source, commit, tuple(file for file, _ in described), licenses)


def read(spark: SparkSession, pinned: PinnedSource) -> DataFrame:
    """A pinned source's rows as samples (`contract.SAMPLE_SCHEMA`)."""
    source = pinned.source
    options = {"split": source.split, "revision": pinned.commit, "provenance": "true"}
    if source.config:
        options["config"] = source.config
    rows = spark.read.format("huggingface").options(**options).load(source.repo)
    return adapt.finevision(rows, source)


def _commit(source: Source, field: str) -> tuple[str, tuple[str, ...]]:
    api = HfApi()
    try:
        info = api.dataset_info(source.repo, revision=source.revision)
        licenses = (info.card_data or {}).get("license") or []
        return info.sha, (licenses,) if isinstance(licenses, str) else tuple(licenses)
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
        raise SourceError(f"{field}.repo: {source.repo} cannot be read at {constants.ENDPOINT}: {error}") from None


def _builder(source: Source, field: str, commit: str):
    names = get_dataset_config_names(source.repo, revision=commit)
    if source.config is not None and source.config not in names:
        raise SourceError(
            f"{field}.config: {source.repo} has no configuration {source.config!r}; it has {', '.join(names)}"
        )
    if source.config is None and len(names) > 1 and "default" not in names:
        raise SourceError(f"{field}.config: {source.repo} has several configurations; name one of {', '.join(names)}")
    return load_dataset_builder(source.repo, source.config, revision=commit)


def _describe(fs: HfFileSystem, source: Source, commit: str, path: str) -> tuple[SourceFile, pa.Schema]:
    with fs.open(f"datasets/{source.repo}@{commit}/{path}", block_size=FOOTER_BLOCK) as file:
        metadata = pq.read_metadata(file)
        return SourceFile(path, file.size, metadata.num_rows), metadata.schema.to_arrow_schema()
