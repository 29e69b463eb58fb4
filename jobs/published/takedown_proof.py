"""The proof of a takedown: no image of the new revision is one of those that go.

Every image of every file is read and compared by its hash. Where some are shown still, the samples that show them are
gathered, all of them: taking one of these down takes down its images too, and who shows *those* is in the way next. So
the dataset is read again until no sample is added, twice as a rule, on the way to an error alone. Rejected: remembering
every sample's hashes in the first reading, which costs memory in every takedown for the few that fail.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from jobs.output.finished_shard import from_ipc
from jobs.published.dataset import Packed
from jobs.published.remainder import Remainder

NUM_SHOWN = 20  # ids in a message


class TakedownError(ValueError):
    """A takedown that cannot be done as asked; the message names what stands against it. Nothing was published."""


class SharedImagesError(TakedownError):
    """Samples that stay show images that go. `ids`: of all that must be named too, sorted."""

    def __init__(self, found: Mapping[tuple[int, str], str]):
        self.ids = sorted({i for i, _ in found})
        places = [f"{i} of {source} in {found[i, source]}" for i, source in sorted(found)[:NUM_SHOWN]]
        more = f" and {len(found) - NUM_SHOWN:,} more" if len(found) > NUM_SHOWN else ""
        how = (
            "save the ids on standard output and name them with --ids-file"
            if len(self.ids) > NUM_SHOWN
            else f"with --ids {','.join(map(str, self.ids))} beside those given"
        )
        super().__init__(
            f"{len(found):,} other sample{'' if len(found) == 1 else 's'} would show an image that is to be taken "
            f"down, or share one with such a sample: {'; '.join(places)}{more}; nothing was published: name them too, "
            f"{how}"
        )


@dataclass(frozen=True)
class Wanted:
    """Which samples go: by id, and all of a source."""

    ids: frozenset[int] = frozenset()
    source: str | None = None

    def takes(self, sample_id: int, source: str) -> bool:
        return sample_id in self.ids or source == self.source


def some_of(ids: Sequence[int]) -> str:
    """The first ids for a message: "1, 2 and 40 more"."""
    more = f" and {len(ids) - NUM_SHOWN:,} more" if len(ids) > NUM_SHOWN else ""
    return ", ".join(map(str, ids[:NUM_SHOWN])) + more


def prove(packed: Packed, splits: Mapping[str, Remainder], wanted: Wanted, hashes: set[bytes], folder: Path) -> int:
    """Read every image and id of the new revision, whose written files lie in `folder`; how many images.

    `hashes`: SHA-256 of the images that go. Raises SharedImagesError when some are shown still.
    """
    found: dict[tuple[int, str], str] = {}
    hashes, num_before = set(hashes), -1
    while num_before < len(found):
        num_before, num_images = len(found), 0
        for file, sample, digests in _samples(packed, splits, folder):
            assert not wanted.takes(*sample), f"{file}: sample {sample[0]} is still there"
            num_images += len(digests)
            if not hashes.isdisjoint(digests):
                found[sample] = file
                hashes.update(digests)
    if found:
        raise SharedImagesError(found)
    return num_images


def _samples(
    packed: Packed, splits: Mapping[str, Remainder], folder: Path
) -> Iterator[tuple[str, tuple[int, str], list[bytes]]]:
    """File, (id, source) and the hashes of its images, of every sample of the new revision."""
    local = Packed("the new revision", None, LocalFileSystem(), str(folder))
    for part in splits.values():
        for row in part.manifest.row_groups.to_pylist():
            if row["file"] not in part.files:
                yield from _of_row_group(packed.row_group, row["file"], row["row_group"])
        for row in part.rows:
            for index in range(from_ipc(row["row_groups"]).num_rows):
                yield from _of_row_group(local.row_group, row["path"], index)


def _of_row_group(read: Callable, file: str, index: int) -> Iterator[tuple[str, tuple[int, str], list[bytes]]]:
    columns = ["images", "sample_ids", "sample_sources", "sample_num_images"]
    for pack in read(file, index, columns).to_pylist():
        images = iter(pack["images"])
        for i, source, count in zip(pack["sample_ids"], pack["sample_sources"], pack["sample_num_images"], strict=True):
            yield file, (i, source), [hashlib.sha256(next(images)["bytes"]).digest() for _ in range(count)]
