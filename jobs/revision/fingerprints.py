"""Fingerprints of runs and shards: digests of everything that determines their bytes."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from jobs.installed import version
from jobs.output.finished_shard import FIELDS
from jobs.shards.plan import ShardPlan
from jobs.sources.pinned import PinnedSource
from packing_udfs import contract
from packing_udfs.config import Config
from packing_udfs.encode.processor import ProcessorFiles

__all__ = ["fingerprint_of", "plain", "run_fingerprint", "shards_fingerprint", "versions"]

_PACKAGES = ("packing-udfs", "pyspark", "pyarrow", "numpy", "transformers", "tokenizers", "pillow")


def run_fingerprint(config: Config, sources: Sequence[PinnedSource], processor: ProcessorFiles) -> str:
    """SHA-256 (hex) of contract, configuration, source commits and processor."""
    return fingerprint_of(plain(config, processor), [s.commit for s in sources], processor.fingerprint)


def fingerprint_of(config: dict[str, Any], commits: Sequence[str], processor: str) -> str:
    """A run's fingerprint from what its manifest says of it: configuration, source commits, processor fingerprint."""
    return _sha256([contract.VERSION, config, list(commits), processor])


def shards_fingerprint(
    config: Config, sources: Sequence[PinnedSource], processor: ProcessorFiles, plan: ShardPlan
) -> str:
    """SHA-256 of all that determines the shards' bytes: the run's, without later decisions, and the versions.

    Shards of one fingerprint may be published together, whichever attempt packed them.
    """
    tree = plain(config, processor)
    del tree["quality"]
    tree["output"] = {name: tree["output"][name] for name in ("repo", "split", "mode", "reuse", "max_drift")}
    commits = [source.commit for source in sources]
    return _sha256([contract.VERSION, tree, commits, processor.fingerprint, plan.paths, FIELDS, versions()])


def plain(config: Config, processor: ProcessorFiles) -> dict[str, Any]:
    """The configuration as published files have it: with the processor's published name in place of its path."""
    tree = config.model_dump(mode="json")
    tree["processor"]["path"] = processor.published_name
    return tree


def versions() -> dict[str, str]:
    """Versions of the packages that determine the bytes."""
    return {name: version(name) for name in _PACKAGES}


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
