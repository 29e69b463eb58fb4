"""What outputs tell about themselves, and how a run is known to them.

Both outputs, `hub_repository.Repository` and `folder.Folder`, have

    check_token, read_head, create      before Spark starts: what is there, and may it be written to
    upload, remind, source              in a worker: one finished file, which nothing refers to yet; the last version
    draft                               in the driver: finished shards, kept until all of them are published

and both drafts, `hub_draft.HubDraft` and `folder.FolderDraft`, have

    published, kept                     what an earlier attempt did: the commit of all, or some finished shards
    add, publish, close                 keep a finished shard, show everything at once, give up

What a user did wrong raises OutputError, what the output did not do raises PublishError. Until `publish` the output
shows what it showed before, afterwards the whole run. Outputs are pickled with a shard's work.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from packing_udfs import contract, manifest

__all__ = ["Head", "MovedError", "OutputError", "PublishError", "Published", "Run"]

_ALWAYS_THERE = {".gitattributes"}  # in a new repository


class PublishError(RuntimeError):
    """The output did not take the packs; it shows what it showed before."""


class MovedError(PublishError):
    """Somebody else committed to the branch that a commit was made for."""

    def __init__(self, repo: str, commit: str | None, revision: str = "main"):
        where = "its main branch" if revision == "main" else revision
        super().__init__(
            f"{repo}: {where} is no longer at {commit}, where it was when the run started: somebody else committed. "
            "Nothing was published; run the job again"
        )


class OutputError(ValueError):
    """An output that cannot be written to; the message names the field, the value and what to do."""


@dataclass(frozen=True)
class Head:
    """What an output holds before the run: its commit and files, or nothing."""

    commit: str | None
    paths: tuple[str, ...] = ()
    readme: str = ""
    manifests: tuple[tuple[str, dict], ...] = ()  # (split, info) of each manifest/{split}.json
    left: tuple[str, ...] = ()  # files, not in `paths`, that an unfinished run left there (`jobs.output.sidecars`)

    @classmethod
    def of(cls, commit: str, paths: Iterable[str], readme: bytes, read: Callable[[str], bytes], left=()) -> "Head":
        """The head of a commit with these paths, `left` among them; `read` gives a file of the commit.

        Raises UnicodeDecodeError for a README.md that is not UTF-8. Manifests that no packing job wrote are ignored.
        """
        names = [path for path in sorted(paths) if path.startswith("manifest/") and path.endswith(".json")]
        infos = [(PurePosixPath(name).stem, _our_info(read(name))) for name in names]
        ours = tuple((split, info) for split, info in infos if info)
        return cls(commit, tuple(sorted(set(paths) - set(left))), readme.decode(), ours, tuple(left))

    @property
    def is_new(self) -> bool:
        """Whether there is nothing but what every new repository has."""
        return set(self.paths) <= _ALWAYS_THERE

    @property
    def taken_down(self) -> list[int]:
        """Ids of the samples that were taken down from any split, sorted (`jobs.takedown`).

        Raises OutputError for a malformed list: to ignore it would pack those samples again.
        """
        found: set[int] = set()
        for split, info in self.manifests:
            ids = info.get("taken_down", [])
            if not isinstance(ids, list) or any(type(i) is not int for i in ids):
                raise _bad_field(split, "taken_down", ids, "a list of sample_ids")
            found.update(ids)
        return sorted(found)

    def runs(self, split: str) -> list[str]:
        """Names of the runs that made a split, oldest first; none without a manifest. Raises OutputError."""
        info = dict(self.manifests).get(split)
        if info is None:
            return []
        runs = info["runs"]
        found = [run.get("run") for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []
        names = [name for name in found if isinstance(name, str)]
        if not names or len(names) < len(runs):
            raise _bad_field(split, "runs", runs, "a list of runs, each with its fingerprint in `run`")
        return names

    def files_of(self, split: str) -> list[str]:
        """Paths that belong to a split and to no other one: its data, manifest and quarantine."""
        folders = tuple(f"{d.format(split=split)}/" for d in (contract.DATA_DIR, contract.QUARANTINE_DIR))
        single = [name.format(split=split) for name in (contract.MANIFEST_JSON, contract.MANIFEST_PARQUET)]
        return [path for path in self.paths if path.startswith(folders) or path in single]


def _our_info(data: bytes) -> dict | None:
    """A manifest's info, None for a file that no packing job wrote."""
    try:
        info = json.loads(data)
    except ValueError:
        return None
    return info if isinstance(info, dict) and {"contract", "run", "runs", "totals"} <= info.keys() else None


def _bad_field(split: str, field: str, value: object, must: str) -> OutputError:
    return OutputError(
        f"output.repo: {contract.MANIFEST_JSON.format(split=split)} has {field}={repr(value)[:60]}, which must be "
        f"{must}; restore the file from an earlier revision, or write to another output.repo"
    )


@dataclass(frozen=True)
class Run:
    """The fingerprints of a run: `shards` determines every byte of every shard, `run` all that is published.

    Both are hex digests. They differ by what is decided after packing, such as the largest share of a quarantine: a run
    that failed because of it goes on from its shards under another limit.
    """

    run: str
    shards: str
    num_shards: int


class Published(ABC):
    """An output whose published files can be read."""

    @abstractmethod
    def read(self, path: str, commit: str) -> bytes:
        """A file at a commit."""

    def read_manifest(self, commit: str, split: str) -> manifest.Manifest:
        """The manifest of a split at a commit."""
        return manifest.read(lambda path: self.read(path, commit), split)

    def read_report(self, commit: str) -> dict:
        """The published report at a commit."""
        return json.loads(self.read(contract.REPORT, commit))
