"""How runs and shards are known: digests of everything that determines their bytes."""

import hashlib
import json
from collections.abc import Sequence

from jobs.installed import version
from jobs.output.finished_shard import RESULT
from jobs.shards.plan import ShardPlan
from jobs.sources.pinned import PinnedSource
from packing_udfs import contract
from packing_udfs.config import Config
from packing_udfs.encode.processor import ProcessorFiles

VERSIONS = ("packing-udfs", "pyspark", "pyarrow", "numpy", "transformers", "tokenizers", "pillow")


def run_fingerprint(config: Config, sources: Sequence[PinnedSource], processor: ProcessorFiles) -> str:
    """SHA-256 of all that determines the output: contract, configuration, source commits, processor."""
    return fingerprint_of(plain(config, processor), [s.commit for s in sources], processor.fingerprint)


def fingerprint_of(config: dict, commits: Sequence[str], processor: str) -> str:
    """The fingerprint of a run by what its manifest says of it: configuration, source commits, processor's files."""
    return _sha256([contract.VERSION, config, list(commits), processor])


def shards_fingerprint(
    config: Config, sources: Sequence[PinnedSource], processor: ProcessorFiles, plan: ShardPlan
) -> str:
    """SHA-256 of all that determines the shards' bytes: the same without what is decided later, and the versions.

    Shards of one fingerprint may be published together, whichever attempt packed them.
    """
    tree = plain(config, processor)
    del tree["quality"]
    tree["output"] = {name: tree["output"][name] for name in ("repo", "split", "mode", "reuse", "max_drift")}
    commits = [source.commit for source in sources]
    return _sha256([contract.VERSION, tree, commits, processor.fingerprint, plan.paths, RESULT.names, _versions()])


def plain(config: Config, processor: ProcessorFiles) -> dict:
    """The configuration as published files have it, with the processor's published name for its path."""
    tree = config.model_dump(mode="json")
    tree["processor"]["path"] = processor.published_name
    return tree


def _versions() -> dict[str, str]:
    return {name: version(name) for name in VERSIONS}


def _sha256(value) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
