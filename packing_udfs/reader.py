"""Stream packs from the Hub, a folder or any fsspec URL into training, exact to the sample.

    dataset = PackedDataset("owner/packed", global_batch_size=64, micro_batch_size=2)
    for batch in DataLoader(dataset, batch_size=None, num_workers=4):
        ...
        checkpoint["reader"] = batch["state"]

On 8 ranks that is 4 batches of 2 packs per step, with a worker for each. The order is a pure function of manifest, seed
and epoch (`packing_udfs.order`): 64 lanes side by side, of which each rank reads a block. So a position is two
integers, resuming is a seek, and the global batches after it are the same for every world size that divides 64 and for
any number of workers.

The dataset makes whole batches itself, hence batch_size=None: only it knows which packs belong to a step. Each worker
has lanes of its own. Frameworks that deal batches out to ranks (accelerate's `prepare`, the Trainer's own loader) must
not touch this loader: see `packing_udfs.adapters`.

Costs: at the start two requests per node for the manifest, and one per job that names a branch; then one request per
row group and one per file. Memory per rank: (lanes + prefetch) row groups. Rejected: yielding single packs for
DataLoader to batch (with two workers, batches cross steps), step s from worker s mod workers (every worker reads every
row group), a shuffle buffer (each checkpoint would have to contain it).
"""

from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from math import ceil
from numbers import Integral, Real
from typing import Literal

import numpy as np
import torch

from packing_udfs import collate, contract, manifest
from packing_udfs.order import ORDER_VERSION, Order, manifest_order
from packing_udfs.parquet.without_manifest import manifest_from_footers
from packing_udfs.storage.byte_source import BLOCK_SIZE, RANGE_SIZE, Source
from packing_udfs.storage.hub import HubSource, open_source
from packing_udfs.stream.prefetch import Prefetcher
from packing_udfs.stream.resume import STATE_VERSION, Cut, StateError, StepDataset

__all__ = ["PackedDataset", "StateError"]


class PackedDataset(StepDataset):
    """Batches of packs of one split, for one rank: `DataLoader(dataset, batch_size=None)`.

    repo_or_path: `owner/name` or `hf://datasets/owner/name` on the Hub, a folder, or an fsspec URL. Do not modify files
        of a folder while they are read: they are mapped into memory, and a file that is cut short ends the process by
        SIGBUS. The jobs write new files, and rsync replaces files as a whole.
    revision: branch, tag or commit; pinned to one commit here, on all ranks of torch.distributed. Name a commit in long
        runs, so that a resumed run finds the same data.
    global_batch_size: packs per step over all ranks; a multiple of world_size.
    micro_batch_size: packs per batch; None for the rank's whole part of a step, which it must divide. At most as many
        DataLoader workers as micro-batches per step are busy; idle ones are logged.
    rank, world_size: by default those of torch.distributed if it is initialised, else 0 of 1; never the environment's.
    seed, shuffle: which order; shuffle=False is the stored order.
    balance: the lanes of a step have about the same image work. Without it, ranks wait for the one with most images.
    end: "drop" the packs that fill no step at the end of an epoch (see `dropped`), or "pad" the step with packs whose
        labels are all -100. All ranks have the same number of steps.
    decode: images in the batch as "pil", as encoded "bytes", or None. A processor makes pixels instead.
    processor: folder or Hub repository of the model's processor, which makes the batch's pixel_values. Its files must
        be those that packed the dataset, to the byte.
    blank: put a small blank image into the padding of a batch without images, so that every step runs the vision tower:
        sharded training would hang otherwise. Needs the processor.
    mrope: position_ids by the rule of Qwen2-VL and its successors (`packing_udfs.stream.mrope`). Needs the processor.
    pad_token_id: fills input_ids after the last sample.
    prefetch: row groups to fetch ahead per process, beyond those in use. None: one per lane from a local disk, one and
        a half elsewhere. Less saves memory.
    range_size: bytes per request at most (128 MiB, so that nearly every row group is one request).
    block_size: bytes to take from a connection at a time (1 MiB); between blocks it stops if the reader was left.
    retry_seconds: how long to try a request again without a new byte, before FetchError reaches the loop.
    verify: check every page's checksum, so that one flipped bit in an image is an error with an address. It takes a
        third of the processor time of reading bytes.

    Batches are dicts: see `packing_udfs.collate.collate`; `state` is the position after the batch, in plain values. The
    Hub's token comes from huggingface_hub (HF_TOKEN) and is not kept. A split without a manifest is read from its
    footers, with a MissingManifestWarning (`packing_udfs.parquet.without_manifest`).

    Raises ValueError for arguments that do not fit, ContractError for data of another contract, ProcessorError for
    another processor, and StateError (`load_state_dict`) for a state of another manifest, seed, order or batch size.
    """

    def __init__(
        self,
        repo_or_path: str,
        split: str = "train",
        *,
        revision: str | None = None,
        global_batch_size: int,
        micro_batch_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        balance: bool = True,
        end: Literal["drop", "pad"] = "drop",
        decode: Literal["pil", "bytes"] | None = "pil",
        processor: str | None = None,
        blank: bool = False,
        mrope: bool = False,
        pad_token_id: int = 0,
        prefetch: int | None = None,
        range_size: int = RANGE_SIZE,
        block_size: int = BLOCK_SIZE,
        retry_seconds: float = 600.0,
        verify: bool = True,
    ):
        if decode not in ("pil", "bytes", None):
            raise ValueError(f"decode={decode!r}: must be 'pil', 'bytes' or None")
        if not (isinstance(retry_seconds, Real) and retry_seconds >= 0):
            raise ValueError(f"retry_seconds={retry_seconds!r}: must be a number of seconds, at least 0")
        if processor is None and (blank or mrope):
            raise ValueError(f"blank={blank}, mrope={mrope}: both need the processor")
        super().__init__(_cut(rank, world_size, global_batch_size, micro_batch_size))
        self._order_options = {"global_batch_size": self.cut.global_batch_size, "seed": _whole("seed", seed, 0)}
        self._order_options |= {"shuffle": shuffle, "balance": balance, "end": end}
        self._prefetch = None if prefetch is None else _whole("prefetch", prefetch, 0)
        self._verify = verify
        sizes = {"range_size": _whole("range_size", range_size, 1), "block_size": _whole("block_size", block_size, 1)}
        self._source = open_source(repo_or_path, revision, retry_seconds=retry_seconds, **sizes)
        self.manifest = _load_manifest(self._source, split, together=world_size is None)
        self.num_steps = self._order(epoch=0).num_steps  # that of every epoch
        if not self.num_steps:
            raise ValueError(
                f"global_batch_size={global_batch_size}: {self._source.name} has {self.manifest.num_packs} packs in "
                f"{split!r}"
            )
        loaded = None if processor is None else _load_processor(processor, self.manifest.info["processor"])
        self._collate = partial(
            collate.collate,
            seq_len=self.manifest.info["seq_len"],
            processor=loaded,
            pad_token_id=pad_token_id,
            images=decode,
            blank=collate.Blank(loaded) if blank else None,
            mrope=_mrope(loaded) if mrope else None,
        )

    @property
    def dropped(self) -> list[tuple[str, int, int]]:
        """(file, row group, row) of the packs that the epoch set last leaves out."""
        row_groups, rows = self._order(self._shared.read().epoch).dropped
        table = self.manifest.row_groups.take(row_groups)
        return list(zip(table["file"].to_pylist(), table["row_group"].to_pylist(), rows.tolist(), strict=True))

    def _batches(self, epoch: int, first: int, every: int) -> Generator[dict, None, None]:
        order, size = self._order(epoch), self.cut.micro_batch_size
        step, first_lane = first // self.micro_batches_per_step, self.cut.rank * self.cut.num_lanes
        mine = range(first % every, self.micro_batches_per_step, every)  # micro-batches of each step
        lanes = [range(first_lane + j * size, first_lane + (j + 1) * size) for j in mine]
        num_lanes = len(mine) * size
        loader = Prefetcher(
            self._source,
            self.manifest.row_groups,
            [order.visits(step, of_batch.start, size) for of_batch in lanes] if step < order.num_steps else [],
            num_lanes=num_lanes,
            prefetch=ceil(num_lanes * self._source.ahead) if self._prefetch is None else self._prefetch,
            verify=self._verify,
        )
        try:
            for index in range(first, len(self), every):
                step, j = divmod(index, self.micro_batches_per_step)
                loader.advance(step)
                row_groups, rows, is_padding = order.step(step)
                of_batch = lanes[j // every]
                packs = [loader.pack(int(row_groups[lane]), int(rows[lane])) for lane in of_batch]
                padding = is_padding[of_batch]
                yield self._collate([_as_padding(p) if pad else p for p, pad in zip(packs, padding, strict=True)])
        finally:
            loader.close()

    def _order(self, epoch: int) -> Order:
        return manifest_order(self.manifest.row_groups, epoch=epoch, **self._order_options)

    def _identity(self) -> dict:
        return {
            "version": STATE_VERSION,
            "fingerprint": self.manifest.fingerprint,
            "order_version": ORDER_VERSION,
            **self._order_options,
        }


def _as_padding(pack: dict) -> dict:
    """The pack as padding of an epoch's last step: the model learns nothing from it."""
    labels = np.full_like(pack["labels"], contract.IGNORE_INDEX)
    return {**pack, "labels": labels, "num_label_tokens": 0, "is_padding": True}


def _whole(name: str, value: int, least: int) -> int:
    """An integer argument, also NumPy's. Raises ValueError for other values and for one below `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r}: must be an integer, at least {least}")
    return int(value)


def _cut(rank: int | None, world_size: int | None, global_batch_size: int, micro_batch_size: int | None) -> Cut:
    """The arguments as a Cut. Raises ValueError if they do not divide one another."""
    rank, world = _rank_and_world(rank, world_size)
    num_lanes, over = divmod(_whole("global_batch_size", global_batch_size, 1), world)
    if over:
        raise ValueError(f"global_batch_size={global_batch_size}: must be a multiple of world_size={world}")
    micro = num_lanes if micro_batch_size is None else _whole("micro_batch_size", micro_batch_size, 1)
    if num_lanes % micro:
        raise ValueError(
            f"micro_batch_size={micro}: must divide the {num_lanes} packs of a rank's step "
            f"(global_batch_size={global_batch_size} over world_size={world})"
        )
    return Cut(rank, world, num_lanes * world, micro)


def _rank_and_world(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank}, world_size={world_size}: give both or none")
    if rank is None or world_size is None:
        return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if _is_distributed() else (0, 1)
    rank, world_size = _whole("rank", rank, 0), _whole("world_size", world_size, 1)
    if rank >= world_size:
        raise ValueError(f"rank={rank}, world_size={world_size}: rank must be in [0, world_size)")
    return rank, world_size


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _load_manifest(source: Source, split: str, *, together: bool) -> manifest.Manifest:
    info_path, rows_path = (name.format(split=split) for name in (contract.MANIFEST_JSON, contract.MANIFEST_PARQUET))
    if together and _is_distributed() and isinstance(source, HubSource) and not source.is_pinned:
        _pin_together(source, info_path)
    try:
        info = source.read_file(info_path)
    except FileNotFoundError:
        return manifest_from_footers(source, split)
    try:
        return manifest.load(info, source.read_file(rows_path), split)
    except contract.ContractError:
        if not source.forget(info_path, rows_path):
            raise
    return manifest.load(source.read_file(info_path), source.read_file(rows_path), split)  # the kept files were damaged


_num_pins: Counter[str] = Counter()  # by dataset: one that is opened again is looked up again


def _pin_together(source: HubSource, path: str) -> None:
    """The same commit on all ranks, even if the branch moves: the first rank asks and puts the answer into the job's
    store. A collective would hang if one rank alone opens a dataset."""
    store = torch.distributed.distributed_c10d._get_default_store()
    name = f"{source.name}@{source.revision}"
    _num_pins[name] += 1
    key = f"packing-udfs/{name}/{_num_pins[name]}"
    if store.add(f"{key}/ranks", 1) > 1:
        store.wait([key], timedelta(seconds=source.retry_seconds + 60))
        source.revision = store.get(key).decode()
        return
    try:
        with suppress(FileNotFoundError):
            source.read_file(path)
    finally:
        store.set(key, source.revision)


def _mrope(processor):
    from packing_udfs.stream.mrope import rule_of

    if (rule := rule_of(processor)) is None:
        raise ValueError(f"mrope=True: {type(processor).__name__} has one position per token")
    return rule


def _load_processor(path: str, packed_with: dict | None):
    """The processor of these files. Raises ProcessorError if the dataset was packed with other files."""
    from packing_udfs.encode import processor

    if not isinstance(path, str):
        raise ValueError(f"processor={type(path).__name__}: must be its folder or Hub repository, as a string")
    revision = packed_with["revision"] if packed_with and path == packed_with["name"] else None
    files = processor.fetch(path, revision or "main")
    if packed_with and files.fingerprint != packed_with["fingerprint"]:  # unknown without a manifest
        raise processor.ProcessorError(
            f"processor: {path} has the fingerprint {files.fingerprint}, the dataset was packed with "
            f"{packed_with['name']} (revision {packed_with['revision']}), fingerprint {packed_with['fingerprint']}: "
            "its tokens and pixels may differ; use that one"
        )
    return files.load()
