"""Which shards a run writes and where, known before anything is read; `python -m jobs.plan` estimates everything else.

The number of shards is a power of two from the sources' bytes. A rewrite keeps the number it finds, so that a growing
dataset is not reshuffled. Names count up and never change when files are added.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jobs.output.interface import Head, OutputError
from jobs.sources.pinned import PinnedSource
from packing_udfs import contract
from packing_udfs.config import GIB, Config, ConfigError

__all__ = ["PER_MILLION", "VALIDATION", "ShardPlan", "plan_shards", "power_of_two", "shard_path", "splits_of"]

PER_MILLION = 1_000_000
FILES_PER_FOLDER = 5_000  # the Hub allows 10,000; half of it leaves room for what users add
MAX_FILES = 100_000  # in a repository
VALIDATION = "validation"


@dataclass(frozen=True)
class ShardPlan:
    """Which shards a run writes: the path in the repository of each, validation shards last."""

    seed: int
    paths: tuple[str, ...]
    num_validation: int  # shards of the validation split, at the end of `paths`
    validation_fraction: float

    @property
    def num_train(self) -> int:
        return len(self.paths) - self.num_validation

    def index_in_split(self, shard: int) -> int:
        """A shard's number among the shards of its split."""
        return shard if shard < self.num_train else shard - self.num_train


def shard_path(split: str, index: int) -> str:
    """Path of a shard's file: data/train/00007.parquet; from the 5,000th on, in numbered folders."""
    folder = contract.DATA_DIR.format(split=split)
    if index >= FILES_PER_FOLDER:
        folder = f"{folder}/{index // FILES_PER_FOLDER:03d}"
    return f"{folder}/{index:05d}.parquet"


def splits_of(config: Config) -> list[str]:
    """The splits that a run writes."""
    return [config.output.split, VALIDATION] if config.shards.validation_fraction else [config.output.split]


def plan_shards(config: Config, sources: Sequence[PinnedSource], head: Head) -> ShardPlan:
    """The run's shards. Raises OutputError when they would break a limit of the Hub or replace somebody's files."""
    for split in splits_of(config):
        _check_ours(config, head, split)
    fraction = config.shards.validation_fraction
    if fraction and round(fraction * PER_MILLION) in (0, PER_MILLION):
        raise ConfigError(
            f"shards.validation_fraction: {fraction} is too near to 0 or 1: samples go to the splits by the "
            "millionth; use 0 or another share"
        )
    num_train = _num_shards(config, sum(source.num_sampled_bytes for source in sources), head)
    num_validation = power_of_two(num_train * fraction) if fraction else 0
    if num_train + num_validation >= MAX_FILES:  # before their names are made: there may be billions
        raise _too_many(config, head, num_train + num_validation)
    paths = []
    for split, num in zip(splits_of(config), (num_train, num_validation), strict=False):
        first = _next_index(head, split) if config.output.mode == "append" else 0
        paths += [shard_path(split, first + i) for i in range(num)]
    if len({*head.paths, *paths}) >= MAX_FILES:  # files of one name replace each other
        raise _too_many(config, head, len(paths))
    return ShardPlan(config.shards.seed, tuple(paths), num_validation, fraction)


def _too_many(config: Config, head: Head, num: int) -> OutputError:
    given = config.shards.num_shards
    name, do = ("num_shards", "use fewer") if given else ("shard_bytes", "use larger shards")
    return OutputError(
        f"shards.{name}: {given or config.shards.shard_bytes} makes {num} files beside {len(head.paths)} in "
        f"{config.output.repo}, and a repository holds fewer than {MAX_FILES}; {do}"
    )


def _check_ours(config: Config, head: Head, split: str) -> None:
    """Refuse a split whose files no packing job made: a rewrite would delete them, an append would mix with them."""
    there = head.files_of(split)
    if there and split not in dict(head.manifests):
        raise OutputError(
            f"output.repo: {config.output.repo} has {there[0]}, which no packing job made, where the split {split} "
            "goes; name another repository or output.split, or remove it"
        )


def _num_shards(config: Config, num_bytes: int, head: Head) -> int:
    if config.shards.num_shards:
        return config.shards.num_shards
    before = dict(head.manifests).get(config.output.split, {}).get("num_shards")
    if before and config.output.mode == "overwrite" and num_bytes <= before * GIB:
        return before
    return power_of_two(num_bytes / config.shards.shard_bytes)


def power_of_two(least: float) -> int:
    """The smallest power of two that is at least `least`."""
    power = 1
    while power < least:
        power *= 2
    return power


def _next_index(head: Head, split: str) -> int:
    """The number after the highest one of a split's files; 00007_001 is a part of the oversized shard 7."""
    paths = [path for path in head.files_of(split) if not path.startswith("manifest/")]
    names = [re.fullmatch(r".*/(\d+)(_\d+)?\.parquet", path) for path in paths]
    return max((int(name[1]) + 1 for name in names if name), default=0)
