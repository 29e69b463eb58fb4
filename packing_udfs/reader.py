"""Stream packs from the Hub, a folder or any fsspec URL into training, exact to the sample.

    dataset = PackedDataset("owner/packed", global_batch_size=64, micro_batch_size=2)
    for batch in DataLoader(dataset, batch_size=None, num_workers=4):
        ...
        checkpoint["reader"] = batch["state"]

On 8 ranks that is 4 batches of 2 packs a step, and a worker for each. The order is a pure function of manifest, seed
and epoch (`packing_udfs.order`): 64 lanes side by side, of which each rank reads a block. A position in it is two
integers, so a checkpoint is a handful of them, resuming is a seek, and the global batches after it are the same for
every world size that divides 64 and any number of workers.

The dataset makes whole batches itself (hence batch_size=None): a DataLoader batch comes from one worker, and only the
dataset knows which packs belong to one step. A rank's part of a step is one batch, or several with `micro_batch_size`
(gradient accumulation); each worker has lanes of its own, which it alone reads. Frameworks that deal batches out
(accelerate's `prepare`, the Trainer's own loader) must leave this loader alone: see `packing_udfs.adapters`.

Costs: at the start the manifest, two requests a node and one more for a job that names a branch; then one request a
row group and one a file. Memory a rank: (lanes + prefetch) row groups. Rejected: yielding single packs for DataLoader
to batch (with two workers, batch boundaries cross steps), step s from worker s mod workers (every worker reads every
row group), a shuffle buffer (its content would have to be in every checkpoint).
"""

from collections import Counter
from collections.abc import Iterator
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
from packing_udfs.storage.byte_source import BLOCK_SIZE, RANGE_SIZE
from packing_udfs.storage.hub import HubSource, open_source
from packing_udfs.stream.prefetch import Prefetcher
from packing_udfs.stream.resume import STATE_VERSION, StateError, StepDataset

__all__ = ["PackedDataset", "StateError"]


class PackedDataset(StepDataset):
    """Batches of packs of one split, this rank's part of them. See the module docstring; `DataLoader(dataset,
    batch_size=None)`.

    repo_or_path: `owner/name` or `hf://datasets/owner/name` on the Hub, a folder, or an fsspec URL. Of a folder's
        files, what the system has in memory already is mapped: let nobody change one in place meanwhile (one that is
        cut short ends the process by SIGBUS). Jobs here write new files, and rsync puts them in place whole.
    revision: branch, tag or commit, pinned to a commit here, the same on all ranks of torch.distributed. Give a commit
        in long runs: a resumed run finds the data that it left.
    global_batch_size: packs a step over all ranks; a multiple of world_size.
    micro_batch_size: packs in a batch; the rank's whole part of a step when None. It must divide that, and the number
        of micro-batches is the number of DataLoader workers that can be busy: a batch is made by one worker, and two
        workers that made every other step would both read every row group. More workers say that they are idle.
    rank, world_size: from torch.distributed where it is initialised, else 0 of 1. Environment variables are not read.
    seed, shuffle: which order; shuffle=False is stored order.
    balance: the packs of a step cost about the same image work, in every lane. False mixes packs of all costs in each
        step, and the ranks of a step then wait for the one with the most images.
    end: what becomes of the fewer than global_batch_size packs that an epoch leaves: "drop" (see `dropped`), or "pad"
        (one more step, filled up with packs whose labels are all -100). No rank has a step more than another.
    decode: images in the batch as "pil", as encoded "bytes", or None. With a processor there are pixels in their place.
    processor: the model's processor, whose image processor makes the batch's pixel_values, as its folder or Hub
        repository; the files must be those that the dataset was packed with, to the byte.
    blank: give a batch without images a small blank one in its padding, so that every step runs the vision tower:
        sharded training would hang otherwise. Needs the processor.
    mrope: position_ids by the rule of Qwen2-VL and its successors (`packing_udfs.stream.mrope`). Needs the processor.
    pad_token_id: what fills input_ids behind the last sample.
    prefetch: row groups fetched ahead beyond those in use, a process. When None, as many as it has lanes from a local
        disk, so that the next cycle is there when this one ends, and half as many more from elsewhere, so that requests
        are under way all the time. Less saves memory.
    range_size: bytes of one request at most (128 MiB: a row group is one request, unless it is huge).
    block_size: bytes taken from a connection at a time (1 MiB); in between it is seen whether the reader was left.
    retry_seconds: how long a request is tried again without a byte coming, before FetchError reaches the loop.
    verify: hold every page to its checksum, so that one flipped bit in an image is an error with an address. It takes
        a third of the processor time of reading bytes; pyarrow does not do it by default.

    Batches are dicts: see `packing_udfs.collate.collate`, and `state`: the position after the batch, plain values only.
    The Hub's token is taken from where huggingface_hub finds it (HF_TOKEN) and kept nowhere.
    A split without a manifest is read from its footers (`packing_udfs.parquet.without_manifest`), with a
    MissingManifestWarning. Raises ValueError for arguments that do not fit, ContractError for data of another
    contract, ProcessorError for another processor, and StateError (`load_state_dict`) for a state of another
    manifest, seed, order or batch size.
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
        rank, world = _rank_and_world(rank, world_size)
        seed, global_batch_size = _whole("seed", seed, 0), _whole("global_batch_size", global_batch_size, 1)
        num_lanes, over = divmod(global_batch_size, world)
        if over:
            raise ValueError(f"global_batch_size={global_batch_size}: must be a multiple of world_size={world}")
        micro = num_lanes if micro_batch_size is None else _whole("micro_batch_size", micro_batch_size, 1)
        if num_lanes % micro:
            raise ValueError(
                f"micro_batch_size={micro}: must divide the {num_lanes} packs of a rank's step "
                f"(global_batch_size={global_batch_size} over world_size={world})"
            )
        if decode not in ("pil", "bytes", None):
            raise ValueError(f"decode={decode!r}: must be 'pil', 'bytes' or None")
        if not (isinstance(retry_seconds, Real) and retry_seconds >= 0):
            raise ValueError(f"retry_seconds={retry_seconds!r}: must be a number of seconds, at least 0")
        if processor is None and (blank or mrope):
            raise ValueError(f"blank={blank}, mrope={mrope}: both need the processor")
        super().__init__(rank, world, num_lanes, micro)
        self._order_options = {
            "global_batch_size": global_batch_size,
            "seed": seed,
            "shuffle": shuffle,
            "balance": balance,
            "end": end,
        }
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
        if processor is not None:
            processor = _load_processor(processor, self.manifest.info["processor"])
        self._collate = partial(
            collate.collate,
            seq_len=self.manifest.info["seq_len"],
            processor=processor,
            pad_token_id=pad_token_id,
            images=decode,
            blank=collate.Blank(processor) if blank else None,
            mrope=_mrope(processor) if mrope else None,
        )

    @property
    def dropped(self) -> list[tuple[str, int, int]]:
        """(file, row group, row) of the packs that the epoch set last leaves out."""
        row_groups, rows = self._order(self._shared.epoch).dropped
        table = self.manifest.row_groups.take(row_groups)
        return list(zip(table["file"].to_pylist(), table["row_group"].to_pylist(), rows.tolist(), strict=True))

    def _batches(self, epoch: int, first: int, every: int) -> Iterator[dict]:
        order = self._order(epoch)
        step, per_step, size = first // self.micro_batches_per_step, self.micro_batches_per_step, self._micro_batch_size
        mine = range(first % every, per_step, every)  # micro-batches of each step
        lanes = [range(start, start + size) for start in (self._rank * self._num_lanes + j * size for j in mine)]
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
                step, j = divmod(index, per_step)
                loader.advance(step)
                row_groups, rows, is_padding = order.step(step)
                packs = [loader.pack(int(row_groups[lane]), int(rows[lane])) for lane in lanes[j // every]]
                padding = is_padding[lanes[j // every]]
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
    """The pack as padding of an epoch's last step: nothing in it is learned."""
    labels = np.full_like(pack["labels"], contract.IGNORE_INDEX)
    return {**pack, "labels": labels, "num_label_tokens": 0, "is_padding": True}


def _whole(name: str, value: int, least: int) -> int:
    """An argument that is an integer, NumPy's too. Raises ValueError for others, and for one below `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r}: must be an integer, at least {least}")
    return int(value)


def _rank_and_world(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank}, world_size={world_size}: give both or none")
    if rank is None:
        return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if _is_distributed() else (0, 1)
    rank, world_size = _whole("rank", rank, 0), _whole("world_size", world_size, 1)
    if rank >= world_size:
        raise ValueError(f"rank={rank}, world_size={world_size}: rank must be in [0, world_size)")
    return rank, world_size


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _load_manifest(source, split: str, *, together: bool) -> manifest.Manifest:
    info_path = contract.MANIFEST_JSON.format(split=split)
    if together and _is_distributed() and isinstance(source, HubSource) and not source.is_pinned:
        _pin_together(source, info_path)
    paths = info_path, contract.MANIFEST_PARQUET.format(split=split)
    try:
        info = source.read_file(info_path)
    except FileNotFoundError:
        return manifest_from_footers(source, split)
    try:
        return manifest.load(info, source.read_file(paths[1]), split)
    except contract.ContractError:
        if not source.forget(*paths):
            raise
    return manifest.load(*map(source.read_file, paths), split)  # what was kept on this node was no good


_num_pins: Counter[str] = Counter()  # by name: so that a dataset that is opened again is looked up again


def _pin_together(source: HubSource, path: str) -> None:
    """The same commit on all ranks, although the branch may move meanwhile: whoever comes first asks and leaves the
    answer in the job's store. No collective, which would hang where one rank alone opens a dataset."""
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
        raise ValueError(f"mrope=True: {type(processor).__name__} has one position a token")
    return rule


def _load_processor(path: str, packed_with: dict | None):
    """The processor of these files. Raises ProcessorError when they are not those that the dataset was packed with."""
    from packing_udfs.encode import processor

    if not isinstance(path, str):
        raise ValueError(f"processor={type(path).__name__}: must be its folder or Hub repository, as a string")
    is_named = packed_with is not None and path == packed_with["name"]
    files = processor.fetch(path, packed_with["revision"] or "main" if is_named else "main")
    if packed_with is not None and files.fingerprint != packed_with["fingerprint"]:  # without a manifest nobody knows
        raise processor.ProcessorError(
            f"processor: {path} has the fingerprint {files.fingerprint}, the dataset was packed with "
            f"{packed_with['name']} (revision {packed_with['revision']}), fingerprint {packed_with['fingerprint']}: "
            "its tokens and pixels may differ; use that one"
        )
    return files.load()
