"""The proof of a takedown: the new revision has none of the images that go.

Every image of every file is read and compared by its hash. When some are still shown, all samples that show them are
gathered: taking one of these down takes down its images too, and then other samples that show *those* are in the way.
So the dataset is read again until no sample is added, twice as a rule, and only on the way to an error. Rejected: to
remember every sample's hashes in the first reading, which costs memory in every takedown for the few that fail.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from jobs.published.remainder import NewRevision
from jobs.published.wanted import ORIGIN_COLUMNS, Origin, TakedownError, Wanted
from packing_udfs import walk

__all__ = ["NUM_SHOWN", "SharedImagesError", "prove", "some_of"]

NUM_SHOWN = 20  # ids in a message


class SharedImagesError(TakedownError):
    """Samples that stay show images that go. `ids`: those of all samples that must go too, sorted."""

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


def some_of(ids: Sequence[int]) -> str:
    """The first ids for a message: "1, 2 and 40 more"."""
    more = f" and {len(ids) - NUM_SHOWN:,} more" if len(ids) > NUM_SHOWN else ""
    return ", ".join(map(str, ids[:NUM_SHOWN])) + more


def prove(new: NewRevision, wanted: Wanted, hashes: set[bytes]) -> int:
    """Read every image and id of the new revision; the number of images.

    `hashes`: SHA-256 of the images that go. Raises SharedImagesError when the new revision shows one of them.
    """
    found: dict[tuple[int, str], str] = {}
    hashes, num_images, num_before = set(hashes), 0, -1
    while num_before < len(found):
        num_before, num_images = len(found), 0
        for file, (sample_id, origin), digests in _samples(new):
            assert not wanted.takes(sample_id, origin), f"{file}: sample {sample_id} is still there"
            num_images += len(digests)
            if not hashes.isdisjoint(digests):
                found[sample_id, origin.source] = file
                hashes.update(digests)
    if found:
        raise SharedImagesError(found)
    return num_images


def _samples(new: NewRevision) -> Iterator[tuple[str, tuple[int, Origin], list[bytes]]]:
    """File, (id, origin) and the hashes of its images, of every sample of the new revision."""
    columns = ["images", "sample_num_images", "sample_ids", *ORIGIN_COLUMNS]
    for row in (row for part in new.splits.values() for row in part.row_groups.to_pylist()):
        for pack in new.row_group(row["file"], row["row_group"], columns).to_pylist():
            for sample in walk.samples(pack):
                digests = [hashlib.sha256(image["bytes"]).digest() for image in sample["images"]]
                origin = Origin(*(sample[name] for name in ORIGIN_COLUMNS))
                yield row["file"], (sample["sample_ids"], origin), digests
