"""Take samples out of a packed dataset, and prove that its new revision holds nothing of them.

    python -m jobs.takedown --repo user/packed --ids 1234,-77
    python -m jobs.takedown --repo user/packed --ids-file ids.txt
    python -m jobs.takedown --repo user/packed --where source=user/photos/train

No source is read. A first look at the light columns finds the files that hold the samples; each of them is packed again
around the holes (`packing_udfs.sticky`), so that little is uploaded, and the others stay as they are. Before anything
is published every image of every file of the new revision is compared with those that go: an image that another sample
shows as well is an error that names it. Manifest, report, card, page and quarantine follow in the same commit.

The ids stay in the manifest (`taken_down`), and packing from the sources leaves those samples out, counted and with a
reason, until the manifest is gone. An edited text is another sample: take it out of the source too.
Old revisions keep what they had, on the Hub as in any git: the output says how to end that.

Cost: one read of the dataset, one write of the files concerned, in this process. Rejected: a delete list beside the
data (the bytes would stay), and dropping whole packs (ten samples go for one).
"""

import argparse
import dataclasses
import hashlib
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fsspec.implementations.local import LocalFileSystem

from jobs import publish
from jobs.folder import Folder
from jobs.outputs import OutputError, PublishError, Run
from jobs.pack import settings
from jobs.packed import Packed, open_packed
from jobs.pages import run as run_page
from jobs.remainder import Remainder, small_files
from jobs.results import empty_row, from_ipc, to_ipc
from packing_udfs import contract, shard_file
from packing_udfs.assemble import Unit
from packing_udfs.config import is_folder, parse
from packing_udfs.encode import EncodedSample, Encoder
from packing_udfs.pack import pack_units, sums_of, unit_key
from packing_udfs.processor import fetch
from packing_udfs.sticky import Previous

RETRY_SECONDS = 300.0


class TakedownError(ValueError):
    """A takedown that cannot be done as asked; the message names what stands against it. Nothing was published."""


@dataclass(frozen=True)
class Wanted:
    """Which samples go: by id, or all of a source."""

    ids: frozenset[int] = frozenset()
    source: str | None = None

    def takes(self, sample_id: int, source: str) -> bool:
        return sample_id in self.ids or source == self.source


def take_down(repo: str, wanted: Wanted, *, processor: str | None = None) -> dict:
    """Take samples out of a repository's main branch; counts and the new commit.

    processor: where the processor is, if not where the manifest says. Raises TakedownError, OutputError or PublishError
    with the repository unchanged.
    """
    in_folder = is_folder(repo)
    repository = Folder(repo, keeps_before=False) if in_folder else publish.Repository(repo, RETRY_SECONDS)
    repository.check_token()
    head = repository.read_head()
    if head.commit is None or not head.manifests:
        raise TakedownError(f"--repo: {repo} holds nothing that jobs.pack has published")
    packed = open_packed(repo, None if in_folder else head.commit)
    hashes: set[bytes] = set()
    splits = {}
    with tempfile.TemporaryDirectory(prefix="packing-") as folder:
        for split in packed.splits:
            splits[split] = Remainder(packed.manifest(split))
            _rewrite(packed, splits[split], wanted, processor, repository, Path(folder), hashes)
            _clear_quarantine(packed, split, splits[split], wanted)
        if not any(part.taken or part.quarantine for part in splits.values()):
            raise TakedownError(f"{repo}: none of its samples is one of those to be taken down; nothing was done")
        num_images = _prove(packed, splits, wanted, hashes, Path(folder))
        files = small_files(packed, splits, head, Path(folder))
    done = {name: part for name, part in splits.items() if part.taken or part.quarantine}
    told = json.dumps([sorted(unit.sample_id for part in done.values() for unit in part.taken), wanted.source])
    digest = hashlib.sha256(told.encode()).hexdigest()
    rows = [row for part in splits.values() for row in part.rows]
    draft = repository.draft(head, Run(run=digest, shards=digest, num_shards=len(rows)))
    for row in rows:
        draft.add([row])
    delete = [path for part in splits.values() for path in part.gone]
    delete += [path for part in splits.values() for path, table in part.quarantine.items() if not table.num_rows]
    delete += [path for path in (*run_page.PICTURES.values(), "report.html") if path in head.paths]
    delete += head.left  # the samples may be in there too
    return {
        "num_samples": sum(len(part.taken) for part in splits.values()),
        "num_files": len(rows) + sum(len(part.gone) for part in splits.values()),
        "num_images_compared": num_images,
        "num_images_taken_down": len(hashes),
        "previous_commit": head.commit,
        "commit": draft.publish(files, delete),
    }


def _rewrite(
    packed: Packed, part: Remainder, wanted: Wanted, processor: str | None, repository: publish.Repository,
    folder: Path, hashes: set[bytes],
) -> None:  # fmt: skip
    """Pack each file of a split that holds such samples again without them, and upload it."""
    rows = part.manifest.row_groups.to_pylist()
    held = {row["file"] for row in rows if any(_takes(packed, row, wanted))}
    if not held:
        return
    info = part.manifest.info
    encoder = _encoder(info, processor)
    config = parse(info["runs"][-1]["config"])
    how = dataclasses.replace(settings(config), max_file_bytes=None)
    for shard, file in enumerate(sorted(held)):
        groups = [_units(packed.row_group(file, r["row_group"]), encoder) for r in rows if r["file"] == file]
        units = sorted((u for group in groups for pack in group for u in pack), key=lambda u: (u.sample_id, u.source))
        stay = [unit for unit in units if not wanted.takes(unit.sample_id, unit.source)]
        for unit in units:
            if wanted.takes(unit.sample_id, unit.source):
                part.taken.append(unit)
                hashes |= {hashlib.sha256(image["bytes"]).digest() for image in unit.images}
        at = {id(unit): i for i, unit in enumerate(units)}
        part.before.append(sums_of(units, [[at[id(u)] for u in pack] for group in groups for pack in group], how))
        if not stay:
            part.gone.append(file)
            continue
        last = Previous(
            [[[unit_key(unit, how) for unit in pack] for pack in group] for group in groups],
            [[sum(unit.encoded.vision_cost for unit in pack) for pack in group] for group in groups],
        )
        again = pack_units(stay, how, last, config.output.max_drift)
        part.after.append(again.sums)
        local = folder / file
        local.parent.mkdir(parents=True, exist_ok=True)
        row_groups = shard_file.write_shard(str(local), file, again.row_groups())
        part.rows.append(
            empty_row(shard, file)
            | {
                "num_bytes": local.stat().st_size,
                "row_groups": to_ipc(row_groups),
                "operation": repository.upload(file, local),
                "sums": json.dumps(again.sums),
            }
        )


def _takes(packed: Packed, row: dict, wanted: Wanted) -> Iterator[bool]:
    table = packed.row_group(row["file"], row["row_group"], ["sample_ids", "sample_sources"])
    for ids, sources in zip(table["sample_ids"].to_pylist(), table["sample_sources"].to_pylist(), strict=True):
        yield from (wanted.takes(i, source) for i, source in zip(ids, sources, strict=True))


def _encoder(info: dict, processor: str | None) -> Encoder:
    """What says how much image work a sample is, for which packs are kept alike."""
    named = info["processor"]
    found = fetch(processor or named["name"], named["revision"] or "main")
    if found.fingerprint != named["fingerprint"]:
        raise TakedownError(
            f"--processor: {processor or named['name']} is not the processor that the dataset was packed with, "
            f"{named['name']} at {named['revision']}"
        )
    return Encoder(found.load())


def _units(table: pa.Table, encoder: Encoder) -> list[list[Unit]]:
    """The packs of a row group as their samples."""
    packs = []
    for pack in table.to_batches(max_chunksize=1):
        row = {name: pack[name][0].as_py() for name in pack.schema.names if name not in ("input_ids", "labels")}
        ids, labels = (pack[name][0].values.to_numpy() for name in ("input_ids", "labels"))
        at = image = 0
        units = []
        for length, count, sample_id, source in zip(
            row["sample_lengths"], row["sample_num_images"], row["sample_ids"], row["sample_sources"], strict=True
        ):
            mine = slice(image, image + count)
            sizes = [(size["height"], size["width"]) for size in row["image_sizes"][mine]]
            cost = sum(one.vision_cost for one in encoder.family.expand(tuple(sizes))) if sizes else 0
            tokens = np.asarray(row["image_num_tokens"][mine], np.int32)
            encoded = EncodedSample(
                input_ids=ids[at : at + length],
                labels=labels[at : at + length],
                image_num_tokens=tokens,
                vision_cost=cost,
            )
            units.append(Unit(sample_id, source, row["images"][mine], sizes, encoded))
            at, image = at + length, image + count
        packs.append(units)
    return packs


def _clear_quarantine(packed: Packed, split: str, part: Remainder, wanted: Wanted) -> None:
    """Rows of a split's quarantine that are of such samples go too."""
    folder = f"{contract.QUARANTINE_DIR.format(split=split)}/"
    for path in packed.paths:
        if path.startswith(folder) and path.endswith(".parquet"):
            table = packed.table(path)
            ids, sources = table["sample_id"].to_pylist(), table["source"].to_pylist()
            keep = [not wanted.takes(i, source) for i, source in zip(ids, sources, strict=True)]
            if not all(keep):
                part.quarantine[path] = table.filter(pa.array(keep))
                part.set_aside += table.filter(pc.invert(pa.array(keep))).to_pylist()


def _prove(packed: Packed, splits: dict[str, Remainder], wanted: Wanted, hashes: set[bytes], folder: Path) -> int:
    """Read every image and id of the new revision; how many images. Raises TakedownError for one that should go."""
    num_images = 0
    for part in splits.values():
        for row in part.manifest.row_groups.to_pylist():
            if row["file"] not in part.files:
                num_images += _look(packed.row_group, row["file"], row["row_group"], wanted, hashes)
        for row in part.rows:
            local = Packed("the new revision", None, LocalFileSystem(), str(folder))
            for index in range(from_ipc(row["row_groups"]).num_rows):
                num_images += _look(local.row_group, row["path"], index, wanted, hashes)
    return num_images


def _look(read: Callable, file: str, index: int, wanted: Wanted, hashes: set[bytes]) -> int:
    columns = ["images", "sample_ids", "sample_sources", "sample_num_images"]
    packs = read(file, index, columns).to_pylist()
    num_images = 0
    for pack in packs:
        images = iter(pack["images"])
        for i, source, count in zip(pack["sample_ids"], pack["sample_sources"], pack["sample_num_images"], strict=True):
            assert not wanted.takes(i, source), f"{file}: sample {i} is still there"
            for _ in range(count):
                if hashlib.sha256(next(images)["bytes"]).digest() in hashes:
                    raise TakedownError(
                        f"{file}: sample {i} of {source} shows an image that is to be taken down; "
                        "nothing was published: name that sample too"
                    )
                num_images += 1
    return num_images


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m jobs.takedown", description="Take samples out of a packed dataset."
    )
    parser.add_argument("--repo", required=True, help="the packed dataset, owner/name or a folder")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--ids", help="sample_ids, with commas between them")
    which.add_argument("--ids-file", help="a file of sample_ids, one a line")
    which.add_argument("--where", metavar="source=NAME", help="all samples of a source, as sample_sources names it")
    parser.add_argument("--processor", help="where the processor is, if not where the manifest says")
    args = parser.parse_args(argv)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    try:
        done = take_down(args.repo, _wanted(args), processor=args.processor)
    except (ValueError, OSError, PublishError, OutputError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"taken down   {done['num_samples']:,} samples with {done['num_images_taken_down']:,} images, "
        f"from {done['num_files']:,} files\n"
        f"proof        none of {done['num_images_compared']:,} images of the new revision is one of them\n"
        f"published    {args.repo} at {done['commit'][:12]}"
    )
    if is_folder(args.repo):
        print("old          files that held them are removed; copies elsewhere are not reached")
        return 0
    print(
        f"old          {done['previous_commit'][:12]} and the revisions before it keep them until the history is "
        "squashed, which cannot be undone:\n"
        f"             HfApi().super_squash_history({args.repo!r}, repo_type='dataset')\n"
        "             and pull requests, branches and tags that hold them are deleted; copies elsewhere are not reached"
    )
    return 0


def _wanted(args: argparse.Namespace) -> Wanted:
    if args.where is not None:
        name, equals, value = args.where.partition("=")
        if name != "source" or not equals or not value:
            raise TakedownError(f"--where: {args.where!r} is refused: must be source=NAME")
        return Wanted(source=value)
    text = args.ids if args.ids is not None else Path(args.ids_file).read_text(encoding="utf-8")
    try:
        ids = frozenset(int(one) for one in text.replace(",", " ").split())
    except ValueError as error:
        raise TakedownError(f"--ids: {error}: ids are whole numbers") from None
    if not ids:
        raise TakedownError("--ids: there are none")
    return Wanted(ids)


if __name__ == "__main__":
    sys.exit(main())
