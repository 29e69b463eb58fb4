"""What a run needs of the place that it writes to: `hub_repository` is the Hub's, `folder` a folder's.

    check_token, read_head, create      before Spark starts: what is there, and may it be written to
    upload                              in a worker: one finished file; nothing refers to it yet
    draft                               in the driver: what has been finished, kept until all of it is published

Until `Draft.publish` the place shows what it showed before, from then on all of the run.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from packing_udfs import contract, manifest
from packing_udfs.storage.byte_source import Source


class PublishError(RuntimeError):
    """The output did not take the packs; what it shows is as it was."""


class MovedError(PublishError):
    """Somebody else committed to what a commit was made for."""

    def __init__(self, repo: str, commit: str | None, revision: str = "main"):
        where = "its main branch" if revision == "main" else revision
        super().__init__(
            f"{repo}: {where} is no longer at {commit}, where it was when the run started: somebody else committed. "
            "Nothing was published; run the job again"
        )


class OutputError(ValueError):
    """An output that cannot be written to; the message names the field, the value and what to do."""


def our_info(data: bytes) -> dict | None:
    """A manifest's info, None when the file is somebody else's."""
    try:
        info = json.loads(data)
    except ValueError:
        return None
    return info if isinstance(info, dict) and {"contract", "run", "runs", "totals"} <= info.keys() else None


def at(value, *keys):
    """What lies at a path of keys in plain JSON values, None where nothing does: `at(info, "runs", -1, "config")`."""
    for key in keys:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


@dataclass(frozen=True)
class Head:
    """What an output holds before the run: its commit and files, or nothing."""

    commit: str | None
    paths: tuple[str, ...] = ()
    readme: str = ""
    manifests: tuple[tuple[str, dict], ...] = ()  # (split, info) of each manifest/{split}.json
    left: tuple[str, ...] = ()  # files, not in `paths`, that an unfinished run left there (`jobs.output.sidecars`)

    @property
    def taken_down(self) -> list[int]:
        """Ids of the samples that were taken down from any split, sorted (`jobs.takedown`).

        Raises OutputError for a list that is none: to go on without it would pack those samples.
        """
        for split, info in self.manifests:
            ids = info.get("taken_down", [])
            if not isinstance(ids, list) or any(type(i) is not int for i in ids):
                raise _bad_field(split, "taken_down", ids, "a list of sample_ids")
        return sorted({i for _, info in self.manifests for i in info.get("taken_down", ())})

    def runs(self, split: str) -> list[str]:
        """Names of the runs that a split is of, oldest first; none without a manifest. Raises OutputError."""
        info = dict(self.manifests).get(split)
        if info is None:
            return []
        runs = info["runs"]
        names = [at(run, "run") for run in runs] if isinstance(runs, list) else []
        if not names or not all(isinstance(name, str) for name in names):
            raise _bad_field(split, "runs", runs, "a list of runs, each with its fingerprint in `run`")
        return names

    def files_of(self, split: str) -> list[str]:
        """Paths that belong to a split: its data, manifest and quarantine, and no other split's."""
        folders = tuple(f"{d.format(split=split)}/" for d in (contract.DATA_DIR, contract.QUARANTINE_DIR))
        single = [name.format(split=split) for name in (contract.MANIFEST_JSON, contract.MANIFEST_PARQUET)]
        return [path for path in self.paths if path.startswith(folders) or path in single]


def _bad_field(split: str, field: str, value, must: str) -> OutputError:
    return OutputError(
        f"output.repo: {contract.MANIFEST_JSON.format(split=split)} has {field}={repr(value)[:60]}, which must be "
        f"{must}; restore the file from an earlier revision, or write to another output.repo"
    )


@dataclass(frozen=True)
class Run:
    """How a run is known: `shards` determines every byte of every shard, `run` all that is published.

    Both are hex digests. They differ by what is decided after packing, as the largest share of a quarantine is: a run
    that failed of it goes on from its shards under another limit.
    """

    run: str
    shards: str
    num_shards: int


class Draft(Protocol):
    """A run's finished shards between packing and publishing. Its methods raise PublishError."""

    published: str | None
    """The commit of this very run when an earlier attempt came that far; nothing is left to do then."""

    kept: Sequence[dict]
    """Rows of `results.RESULT`, `operation` None, of shards that an earlier attempt finished; their files are here."""

    def add(self, rows: Sequence[dict]) -> None:
        """Take finished shards, all rows of a shard in one call; it may store some of them now."""

    def publish(self, files: Mapping[str, bytes], delete: Sequence[str]) -> str:
        """Show everything at once and return the new commit.

        `files`: path → bytes of the small files; `delete`: paths to remove, unless they were written too.
        """

    def close(self, reason: str) -> None:
        """Give the draft up: no later run can use it."""


class Output(Protocol):
    """A place for packed datasets. Errors of the user's are OutputError. It is pickled with a shard's work."""

    def check_token(self) -> None:
        """Refuse early what a write would refuse late."""

    def read_head(self) -> Head:
        """What is there now; an empty Head for nothing."""

    def create(self, private: bool) -> Head:
        """Make the place when there is none, check that it can be written to, and return what it holds."""

    def read_manifest(self, commit: str, split: str) -> manifest.Manifest:
        """The manifest of a split at a commit."""

    def read_report(self, commit: str) -> dict:
        """The published report at a commit."""

    def source(self, commit: str) -> Source:
        """Where workers read what is published at a commit."""

    def remind(self, path_in_repo: str, data: bytes) -> None:
        """Let a worker's cache know what is there of the file whose last version begins with `data`; may do nothing."""

    def upload(self, path_in_repo: str, file: Path) -> object:
        """Send a local file from a worker and return, picklable, what `Draft.add` needs to store it as `operation`."""

    def draft(self, head: Head, run: Run) -> Draft:
        """The run's draft on top of `head`, an earlier attempt's where there is one."""
