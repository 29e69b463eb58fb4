"""Take samples out of a packed dataset, and prove that its new revision has nothing of them. No source is read.

    plan      the light columns tell which files and quarantine rows hold the samples
    rewrite   each of these files is packed again around the holes (`packing_udfs.shard.keep_packs`), so that little is
              uploaded; the others stay as they are
    prove     every image of the new revision is compared with those that go (`jobs.published.takedown_proof`)
    publish   manifests, report, card, page and quarantine follow in the same commit

The ids stay in the manifest (`taken_down`). As long as it exists, packing from the sources leaves those samples out,
counted and with a reason. An edited text is another sample: take it out of the source too. Old revisions keep the
samples, as in any git repository; the command says how to end that.

Cost: one read of the dataset, one write of the files concerned, in this process. Rejected: a delete list beside the
data (the bytes would stay), and dropping whole packs (ten samples go for one).
"""

import hashlib
import json
import operator
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

import pyarrow as pa

from jobs.output import hub_repository
from jobs.output.finished_shard import ShardFile, to_ipc
from jobs.output.folder import Folder
from jobs.output.interface import Head, Run
from jobs.output.open import Output
from jobs.pages.run import PICTURES
from jobs.published import remainder
from jobs.published.dataset import Packed, open_packed
from jobs.published.remainder import TAKEN_DOWN, Gone, NewRevision, Remainder, RewrittenFile
from jobs.published.takedown_proof import prove
from jobs.published.wanted import ORIGIN_COLUMNS, Origin, TakedownError, Wanted
from packing_udfs import contract, walk
from packing_udfs.config import parse
from packing_udfs.encode.encoder import Encoder
from packing_udfs.encode.family import Size
from packing_udfs.encode.processor import fetch_named
from packing_udfs.parquet import write
from packing_udfs.published.shape import ManifestInfo, require_manifest
from packing_udfs.shard.assemble import Unit, units_of
from packing_udfs.shard.keep_packs import Key, Previous
from packing_udfs.shard.pack_shard import pack_units, sums_of, unit_key
from packing_udfs.storage.folders import is_folder

__all__ = ["Done", "take_down"]

RETRY_SECONDS = 300.0


@dataclass(frozen=True)
class Done:
    """What a takedown did."""

    num_samples: int  # of packs
    num_files: int
    num_images_compared: int
    num_images_taken_down: int
    not_there: list[int]
    """Ids that no sample has, sorted."""
    previous_commit: str
    commit: str


def take_down(repo: str, wanted: Wanted, *, processor: str | None = None) -> Done:
    """Take samples out of a repository's main branch.

    processor: where the processor is, if not where the manifest says. Raises TakedownError, OutputError or PublishError
    and leaves the repository unchanged.
    """
    repository, head, packed = _open(repo)
    already = set(head.taken_down)  # a malformed list is an error before anything is read
    plans = {split: _plan(packed, split, wanted) for split in packed.splits}
    if not any(plan.held or plan.quarantine for plan in plans.values()):
        raise _nothing_found(repo, wanted, already, plans)
    with tempfile.TemporaryDirectory(prefix="packing-") as folder:
        splits = {split: _rewrite(packed, plan, wanted, processor, Path(folder)) for split, plan in plans.items()}
        new = NewRevision(packed, splits, Path(folder))
        taken = [sample for part in splits.values() for sample in part.taken]
        hashes = {digest for sample in taken for digest in sample.images}
        num_images = prove(new, wanted, hashes)
        commit = _publish(repository, head, new, wanted)
    gone = {sample.sample_id for part in splits.values() for sample in part.gone}
    return Done(
        num_samples=len(taken),
        num_files=sum(len(part.files) for part in splits.values()),
        num_images_compared=num_images,
        num_images_taken_down=len(hashes),
        not_there=sorted(wanted.ids - gone - already),
        previous_commit=str(head.commit),
        commit=commit,
    )


def _open(repo: str) -> tuple[Output, Head, Packed]:
    """A repository and its main branch. Raises TakedownError when it has no packs."""
    in_folder = is_folder(repo)
    repository = Folder(repo, keeps_before=False) if in_folder else hub_repository.Repository(repo, RETRY_SECONDS)
    repository.check_token()
    head = repository.read_head()
    if head.commit is None or not head.manifests:
        raise TakedownError(f"--repo: {repo} holds nothing that jobs.pack has published")
    return repository, head, open_packed(repo, None if in_folder else head.commit)


def _plan(packed: Packed, split: str, wanted: Wanted) -> Remainder:
    """Find the samples that go: in packs by their light columns, and in the quarantine."""
    manifest = packed.manifest(split)
    require_manifest(manifest, split, packed.name)
    groups: dict[str, list[int]] = {}
    for file, index in zip(*(manifest.row_groups[name].to_pylist() for name in ("file", "row_group")), strict=True):
        groups.setdefault(file, []).append(index)
    held = {file: indices for file, indices in sorted(groups.items()) if _holds(packed, file, indices, wanted)}
    quarantine: dict[str, pa.Table] = {}
    set_aside: list[Gone] = []
    folder = f"{contract.QUARANTINE_DIR.format(split=split)}/"
    for path in (path for path in packed.paths if path.startswith(folder) and path.endswith(".parquet")):
        table = packed.table(path)
        goes = [
            row["reason"] != TAKEN_DOWN
            and wanted.takes(row["sample_id"], Origin(row["source"], row["file"], row["row"]))
            for row in table.to_pylist()
        ]
        if any(goes):
            quarantine[path] = table.filter([not is_gone for is_gone in goes])
            set_aside += [Gone.of_quarantine(row) for row in table.filter(goes).to_pylist()]
    return Remainder(manifest=manifest, held=held, quarantine=quarantine, set_aside=set_aside)


def _holds(packed: Packed, file: str, row_groups: Sequence[int], wanted: Wanted) -> bool:
    """Whether a file holds a sample that goes."""
    for index in row_groups:
        names = ["sample_ids", *ORIGIN_COLUMNS]
        table = packed.row_group(file, index, names)
        ids, *origins = (table[name].combine_chunks().flatten().to_pylist() for name in names)
        if any(map(wanted.takes, ids, map(Origin, *origins))):
            return True
    return False


def _nothing_found(repo: str, wanted: Wanted, already: set[int], plans: Mapping[str, Remainder]) -> TakedownError:
    num_already = len(wanted.ids & already)
    why = f", and {num_already} of the ids were taken down already" if num_already else ""
    runs = [run for plan in plans.values() for run in plan.manifest.info["runs"]]
    names = sorted({source["name"] for run in runs for source in run["sources"]})
    there = f"; its sources are {', '.join(names)}" if wanted.where else ""
    if any(where.file for where in wanted.where):
        there += "; a row that repeats another was packed as that one, whose sample_id its content has"
    return TakedownError(f"{repo}: none of its samples is one of those to be taken down{why}; nothing was done{there}")


def _rewrite(packed: Packed, plan: Remainder, wanted: Wanted, processor: str | None, folder: Path) -> Remainder:
    """Pack the files of a plan again without the samples, into a local folder."""
    if not plan.held:
        return plan
    info, files = ManifestInfo.of(plan.manifest), []
    encoder = Encoder(fetch_named(info.processor.dump(), processor).load())  # tells a sample's vision cost
    for file, row_groups in plan.held.items():
        groups = [_units(packed.row_group(file, index), encoder) for index in row_groups]
        files.append(_rewrite_file(file, groups, info, wanted, folder))
    return replace(plan, files=files)


def _rewrite_file(
    file: str, groups: list[list[list[Unit]]], info: ManifestInfo, wanted: Wanted, folder: Path
) -> RewrittenFile:
    """Pack one file again. `groups`: its row groups of packs of samples."""
    how = remainder.settings_of(info)
    packs = [pack for group in groups for pack in group]
    units = sorted((unit for pack in packs for unit in pack), key=lambda unit: (unit.sample_id, unit.source))
    at = {id(unit): i for i, unit in enumerate(units)}
    goes = [wanted.takes(unit.sample_id, _origin(unit)) for unit in units]
    gone, stay = list(compress(units, goes)), list(compress(units, map(operator.not_, goes)))
    ids = [map(id, pack) for pack in packs]
    before = sums_of(units, [list(map(at.__getitem__, of_pack)) for of_pack in ids], how)
    rewritten = RewrittenFile(path=file, gone=[Gone.of_pack(unit) for unit in gone], before=before)
    if not stay:
        return rewritten

    def keys(pack: list[Unit]) -> list[Key]:
        return [unit_key(unit, how) for unit in pack]

    def cost(pack: list[Unit]) -> int:
        return sum(unit.encoded.vision_cost for unit in pack)

    last = Previous([list(map(keys, group)) for group in groups], [list(map(cost, group)) for group in groups])
    again = pack_units(stay, how, last, parse(info.runs[-1].config.dump()).output.max_drift)
    local = folder / file
    local.parent.mkdir(parents=True, exist_ok=True)
    row_groups = write.write_shard(str(local), file, again.row_groups())
    return replace(rewritten, after=again.sums, num_bytes=local.stat().st_size, row_groups=row_groups)


def _origin(unit: Unit) -> Origin:
    return Origin(unit.source, unit.kept["sample_files"], unit.kept["sample_rows"])


def _units(table: pa.Table, encoder: Encoder) -> list[list[Unit]]:
    """The packs of a row group as their samples."""

    def vision_cost(sizes: tuple[Size, ...]) -> int:
        return sum(image.vision_cost for image in encoder.family.expand(sizes))

    return [units_of(pack, vision_cost) for pack in walk.packs(table)]


def _publish(repository: Output, head: Head, new: NewRevision, wanted: Wanted) -> str:
    """Upload the files that were packed again and commit the new revision; its commit."""
    parts = new.splits.values()
    delete = [file.path for part in parts for file in part.files if not file.num_bytes]
    delete += [path for part in parts for path, table in part.quarantine.items() if not table.num_rows]
    delete += [path for path in (*PICTURES.values(), "report.html") if path in head.paths]
    delete += head.left  # the samples may be in there too
    small = remainder.small_files(new, head, delete)
    ids = [sample.sample_id for part in parts for sample in part.gone]
    told = json.dumps([head.commit, sorted(ids), wanted.where])
    digest = hashlib.sha256(told.encode()).hexdigest()
    draft = repository.draft(head, Run(run=digest, shards=digest, num_shards=len(new.written)))
    for shard, file in enumerate(new.written.values()):
        written = ShardFile(
            shard=shard,
            path=file.path,
            num_bytes=file.num_bytes,
            row_groups=to_ipc(file.row_groups),
            sums=json.dumps(file.after),
            operation=repository.upload(file.path, new.folder / file.path),
        )
        draft.add([written])
    return draft.publish(small, delete)
