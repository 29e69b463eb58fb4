"""Take samples out of a packed dataset, and prove that its new revision holds nothing of them.

    python -m jobs.takedown --repo user/packed --ids -77,1234
    python -m jobs.takedown --repo user/packed --ids-file ids.txt
    python -m jobs.takedown --repo user/packed --where source=user/photos/train

No source is read. A first look at the light columns finds the files that hold the samples; each of them is packed again
around the holes (`packing_udfs.shard.keep_packs`), so that little is uploaded, and the others stay as they are.
Before anything is published every image of every file of the new revision is compared with those that go
(`jobs.published.takedown_proof`): an image that another sample shows as well is an error that names all such samples.
Manifest, report, card, page and quarantine follow in the same commit.

The ids stay in the manifest (`taken_down`), and packing from the sources leaves those samples out, counted and with a
reason, until the manifest is gone. An edited text is another sample: take it out of the source too.
Old revisions keep what they had, on the Hub as in any git: the output says how to end that.

Cost: one read of the dataset, one write of the files concerned, in this process. Rejected: a delete list beside the
data (the bytes would stay), and dropping whole packs (ten samples go for one).
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.output import hub_repository
from jobs.output.finished_shard import empty_row, to_ipc
from jobs.output.folder import Folder
from jobs.output.interface import Run
from jobs.pages import run as run_page
from jobs.published.dataset import Packed, open_packed
from jobs.published.remainder import TAKEN_DOWN, Remainder, settings_of, small_files
from jobs.published.takedown_proof import TakedownError, Wanted, prove
from packing_udfs import contract
from packing_udfs.config import parse
from packing_udfs.encode.encoder import EncodedSample, Encoder
from packing_udfs.encode.processor import fetch_named
from packing_udfs.parquet import write
from packing_udfs.shard.assemble import Unit
from packing_udfs.shard.keep_packs import Previous
from packing_udfs.shard.pack_shard import pack_units, sums_of, unit_key
from packing_udfs.storage.folders import is_folder

RETRY_SECONDS = 300.0


def take_down(repo: str, wanted: Wanted, *, processor: str | None = None) -> dict:
    """Take samples out of a repository's main branch; counts and the new commit.

    processor: where the processor is, if not where the manifest says. Raises TakedownError, OutputError or PublishError
    with the repository unchanged. Ids that no sample has are in the answer's `not_there`.
    """
    in_folder = is_folder(repo)
    repository = Folder(repo, keeps_before=False) if in_folder else hub_repository.Repository(repo, RETRY_SECONDS)
    repository.check_token()
    head = repository.read_head()
    if head.commit is None or not head.manifests:
        raise TakedownError(f"--repo: {repo} holds nothing that jobs.pack has published")
    taken_down = head.taken_down  # a list that is none is said before anything is read
    packed = open_packed(repo, None if in_folder else head.commit)
    hashes: set[bytes] = set()
    splits = {}
    with tempfile.TemporaryDirectory(prefix="packing-") as folder:
        for split in packed.splits:
            splits[split] = Remainder(packed.manifest(split))
            _rewrite(packed, splits[split], wanted, processor, Path(folder), hashes)
            _clear_quarantine(packed, split, splits[split], wanted)
        if not any(part.taken or part.quarantine for part in splits.values()):
            already = len(wanted.ids.intersection(taken_down))
            why = f", and {already} of the ids were taken down already" if already else ""
            raise TakedownError(
                f"{repo}: none of its samples is one of those to be taken down{why}; nothing was done"
                + _sources_there(splits, wanted)
            )
        num_images = prove(packed, splits, wanted, hashes, Path(folder))
        rows = [row for part in splits.values() for row in part.rows]
        for row in rows:  # not before: what is refused leaves nothing behind
            row["operation"] = repository.upload(row["path"], Path(folder, row["path"]))
        files = small_files(packed, splits, head, Path(folder))
    done = {name: part for name, part in splits.items() if part.taken or part.quarantine}
    ids = [unit.sample_id for part in done.values() for unit in part.taken]
    ids += [row["sample_id"] for part in done.values() for row in part.set_aside]
    told = json.dumps([head.commit, sorted(ids), wanted.source])
    digest = hashlib.sha256(told.encode()).hexdigest()
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
        "not_there": sorted(wanted.ids - _gone(splits) - set(head.taken_down)),
        "previous_commit": head.commit,
        "commit": draft.publish(files, delete),
    }


def _gone(splits: Mapping[str, Remainder]) -> set[int]:
    """Ids of the samples that went from packs and quarantine."""
    parts = splits.values()
    return {unit.sample_id for part in parts for unit in part.taken} | {
        row["sample_id"] for part in parts for row in part.set_aside
    }


def _sources_there(splits: Mapping[str, Remainder], wanted: Wanted) -> str:
    """What --where could have named."""
    runs = [run for part in splits.values() for run in part.manifest.info["runs"]]
    names = sorted({source["name"] for run in runs for source in run["sources"]})
    return "" if wanted.source is None else f"; its sources are {', '.join(names)}"


def _rewrite(
    packed: Packed, part: Remainder, wanted: Wanted, processor: str | None, folder: Path, hashes: set[bytes]
) -> None:  # fmt: skip
    """Pack each file of a split that holds such samples again without them, into a local folder."""
    rows = part.manifest.row_groups.to_pylist()
    held = {row["file"] for row in rows if any(_takes(packed, row, wanted))}
    if not held:
        return
    info = part.manifest.info
    encoder = _encoder(info, processor)
    config = parse(info["runs"][-1]["config"])
    how = settings_of(info["runs"])
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
        row_groups = write.write_shard(str(local), file, again.row_groups())
        part.rows.append(
            empty_row(shard, file)
            | {
                "num_bytes": local.stat().st_size,
                "row_groups": to_ipc(row_groups),
                "sums": json.dumps(again.sums),
            }
        )


def _takes(packed: Packed, row: dict, wanted: Wanted) -> Iterator[bool]:
    table = packed.row_group(row["file"], row["row_group"], ["sample_ids", "sample_sources"])
    for ids, sources in zip(table["sample_ids"].to_pylist(), table["sample_sources"].to_pylist(), strict=True):
        yield from (wanted.takes(i, source) for i, source in zip(ids, sources, strict=True))


def _encoder(info: dict, processor: str | None) -> Encoder:
    """What says how much image work a sample is, for which packs are kept alike."""
    return Encoder(fetch_named(info["processor"], processor).load())


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
    """Rows of a split's quarantine that are of such samples go too, but for those that are there for it."""
    folder = f"{contract.QUARANTINE_DIR.format(split=split)}/"
    for path in packed.paths:
        if path.startswith(folder) and path.endswith(".parquet"):
            table = packed.table(path)
            columns = (table[name].to_pylist() for name in ("sample_id", "source", "reason"))
            keep = [why == TAKEN_DOWN or not wanted.takes(i, source) for i, source, why in zip(*columns, strict=True)]
            if not all(keep):
                part.quarantine[path] = table.filter(pa.array(keep))
                part.set_aside += table.filter(pc.invert(pa.array(keep))).to_pylist()
