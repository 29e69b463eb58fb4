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
(gradient accumulation). DataLoader takes batches from its workers in turn, so micro-batch j of a step always belongs to
worker j mod workers, its lanes are read by that worker alone, and the order of batches does not depend on their number.

Costs: at the start the manifest (once a node, from huggingface_hub's cache), then one request a row group and one a
file. Memory a rank: (lanes + prefetch) row groups. Rejected: yielding single packs for DataLoader to batch (with two
workers, batch boundaries cross steps), step s from worker s mod workers (every worker reads every row group), a
shuffle buffer (its content would have to be in every checkpoint).
"""

import logging
from collections.abc import Iterator
from functools import partial
from typing import Literal, TypedDict

import torch
from torch.utils.data import IterableDataset, get_worker_info

from packing_udfs import collate, contract, manifest
from packing_udfs import processor as processors
from packing_udfs.fetch import HubSource, open_source
from packing_udfs.footers import manifest_from_footers
from packing_udfs.order import ORDER_VERSION, Order, manifest_order
from packing_udfs.position import SharedPosition
from packing_udfs.row_groups import Prefetcher, as_padding, dropped_packs

log = logging.getLogger(__name__)

STATE_VERSION = 1


class ReaderState(TypedDict):
    """Where a run is: the same on every rank. `step` of `epoch` is next; `lane` of the rank's lanes of that step are
    done, which is 0 except between the micro-batches of a step."""

    version: int
    fingerprint: str  # of the manifest
    order_version: int
    seed: int
    shuffle: bool
    end: str
    global_batch_size: int
    epoch: int
    step: int
    lane: int


class StateError(ValueError):
    """A state that does not belong to this dataset, or that cannot be had here; the message says what differs."""


class PackedDataset(IterableDataset):
    """Batches of packs of one split, this rank's part of them. See the module docstring; `DataLoader(dataset,
    batch_size=None)`.

    repo_or_path: `owner/name` or `hf://datasets/owner/name` on the Hub, a folder, or an fsspec URL.
    revision: branch, tag or commit, pinned to a commit here. Give a commit in long runs: it costs no request, and a
        resumed run finds the data that it left.
    global_batch_size: packs a step over all ranks; a multiple of world_size.
    micro_batch_size: packs in a batch; the rank's whole part of a step when None. It must divide that, and the number
        of micro-batches is the number of DataLoader workers that can be busy.
    rank, world_size: from torch.distributed where it is initialised, else 0 of 1. Environment variables are not read.
    seed, shuffle: which order; shuffle=False is stored order.
    end: what becomes of the fewer than global_batch_size packs that an epoch leaves: "drop" (see `dropped`), or "pad"
        (one more step, filled up with packs whose labels are all -100). No rank has a step more than another.
    decode: images in the batch as "pil", as encoded "bytes", or None. With a processor there are pixels in their place.
    processor: folder or Hub repository of the model's processor, whose image processor makes the batch's pixel_values;
        it must be the one that the dataset was packed with, to the byte. A loaded one is taken as it is.
    pad_token_id: what fills input_ids behind the last sample.
    prefetch: row groups fetched ahead beyond those in use, a process; as many as it has lanes when None, so that the
        next cycle is there when this one ends. Less saves memory.
    retry_seconds: how long a request is tried again without a byte coming, before FetchError reaches the loop.

    Batches are dicts: see `packing_udfs.collate.collate`, and `state`, a ReaderState: the position after the batch.
    The Hub's token is taken from where huggingface_hub finds it (HF_TOKEN) and kept nowhere.
    A split without a manifest is read from its footers (`packing_udfs.footers`), with a MissingManifestWarning.
    Raises ValueError for arguments that do not fit, ContractError for data of another contract.
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
        end: Literal["drop", "pad"] = "drop",
        decode: Literal["pil", "bytes"] | None = "pil",
        processor=None,
        pad_token_id: int = 0,
        prefetch: int | None = None,
        retry_seconds: float = 600.0,
    ):
        self._rank, self._world_size = _rank_and_world(rank, world_size)
        self._num_lanes, over = divmod(global_batch_size, self._world_size)
        if over or self._num_lanes < 1:
            raise ValueError(
                f"global_batch_size={global_batch_size}: must be a multiple of world_size={self._world_size}"
            )
        self._micro_batch_size = self._num_lanes if micro_batch_size is None else micro_batch_size
        if self._micro_batch_size < 1 or self._num_lanes % self._micro_batch_size:
            raise ValueError(
                f"micro_batch_size={micro_batch_size}: must divide the {self._num_lanes} packs of a rank's step "
                f"(global_batch_size={global_batch_size} over world_size={self._world_size})"
            )
        if decode not in ("pil", "bytes", None):
            raise ValueError(f"decode={decode!r}: must be 'pil', 'bytes' or None")
        if end not in ("drop", "pad"):
            raise ValueError(f"end={end!r}: must be 'drop' or 'pad'")
        if prefetch is not None and prefetch < 0:
            raise ValueError(f"prefetch={prefetch}: must be at least 0")
        self._global_batch_size, self._seed, self._shuffle, self._end = global_batch_size, seed, shuffle, end
        self._prefetch = prefetch
        self._source = open_source(repo_or_path, revision, retry_seconds=retry_seconds)
        self.manifest = _load_manifest(self._source, split)
        num_packs, each = self.manifest.num_packs, global_batch_size
        self._num_steps = num_packs // each if end == "drop" else -(-num_packs // each)
        if not self._num_steps:
            raise ValueError(f"global_batch_size={each}: {self._source.name} has {num_packs} packs in {split!r}")
        if isinstance(processor, str):
            processor = _load_processor(processor, self.manifest.info["processor"])
        self._collate = partial(
            collate.collate,
            seq_len=self.manifest.info["seq_len"],
            processor=processor,
            pad_token_id=pad_token_id,
            images=decode,
        )
        self._shared = SharedPosition()
        self._position: tuple[int, int] | None = None  # (epoch, micro-batches done in it) of the iteration here

    @property
    def num_steps(self) -> int:
        """Steps in an epoch, the same on every rank."""
        return self._num_steps

    def __len__(self) -> int:
        """Batches in an epoch: steps × micro-batches of a step. The same on every rank."""
        return self._num_steps * self._per_step

    @property
    def dropped(self) -> list[tuple[str, int, int]]:
        """(file, row group, row) of the packs that the epoch set last leaves out."""
        order = self._order(self._shared.epoch)
        return dropped_packs(self.manifest.row_groups, *order.dropped)

    def set_epoch(self, epoch: int) -> None:
        """Start at step 0 of `epoch` next time, also in persistent workers. After `load_state_dict`, the epoch of the
        state keeps its position."""
        if epoch != self._shared.epoch:
            self._shared.start(epoch, 0)
            self._position = None

    def state_dict(self) -> ReaderState:
        """The position, in the process that iterates. Raises StateError where DataLoader workers do: they are ahead of
        the loop, so what counts there is `batch["state"]`."""
        worker = get_worker_info()
        if worker is None and self._shared.is_read_by_workers:
            raise StateError(
                "the batches come from DataLoader workers, which are ahead of the loop: use batch['state']"
            )
        if self._position is None:
            return self._state(self._shared.epoch, self._shared.done)
        epoch, done = self._position
        # In a worker, StatefulDataLoader gives the state back to this very worker, which will add its number again.
        return self._state(epoch, done - (worker.id if worker else 0))

    def load_state_dict(self, state: ReaderState) -> None:
        """Go on after `state`: the next iteration gives the batches that would have come. The world size, workers,
        micro_batch_size and prefetch may differ from those of the run that saved it. Raises StateError that says what
        may not."""
        expected = self._state(0, 0)
        if set(state) != set(expected):
            raise StateError(f"reader state: its keys are {sorted(state)}, expected {sorted(expected)}")
        for key, value in expected.items():
            if key not in ("epoch", "step", "lane") and state[key] != value:
                raise StateError(f"reader state: {key} is {state[key]!r}, {_ADVICE.get(key, _OWN).format(value)}")
        micro_batches, over = divmod(state["lane"], self._micro_batch_size)
        if over or state["lane"] >= self._num_lanes:
            raise StateError(
                f"reader state: it was taken between the micro-batches of a step, after {state['lane']} lanes of a "
                f"rank, which is no whole number of micro-batches here; use the state of a finished step"
            )
        self._shared.start(state["epoch"], state["step"] * self._per_step + micro_batches)
        self._position = None

    def __iter__(self) -> Iterator[dict]:
        worker = get_worker_info()
        worker_id, num_workers = (worker.id, worker.num_workers) if worker else (0, 1)
        busy = max(n for n in range(1, num_workers + 1) if self._per_step % n == 0)
        if busy < num_workers and worker_id == 0:
            log.warning(
                "%d of %d DataLoader workers are idle: a step has %d micro-batches of %d packs on this rank, so %d "
                "workers share them; set num_workers to that, or micro_batch_size lower",
                *(num_workers - busy, num_workers, self._per_step, self._micro_batch_size, busy),
            )
        epoch, start = self._shared.begin(worker)
        self._position = epoch, start + worker_id
        if worker_id >= busy:
            return iter(())
        return self._batches(epoch, start + worker_id, busy)

    def _batches(self, epoch: int, first: int, busy: int) -> Iterator[dict]:
        """Micro-batches first, first + busy, … of an epoch."""
        order = self._order(epoch)
        step, per_step, size = first // self._per_step, self._per_step, self._micro_batch_size
        lanes = range(self._rank * self._num_lanes, (self._rank + 1) * self._num_lanes)
        mine = [j for j in range(per_step) if j % busy == first % busy]
        blocks = [(lanes[0], self._num_lanes)] if busy == 1 else [(lanes[j * size], size) for j in mine]
        num_lanes = len(mine) * size
        prefetch = num_lanes if self._prefetch is None else self._prefetch
        visits = [order.visits(step, *block) for block in blocks] if step < order.num_steps else []
        loader = Prefetcher(self._source, self.manifest.row_groups, visits, num_lanes, prefetch)
        try:
            for index in range(first, len(self), busy):
                step, j = divmod(index, per_step)
                loader.advance(step)
                row_groups, rows, is_padding = order.step(step)
                packs = []
                for lane in lanes[j * size : (j + 1) * size]:
                    pack = loader.pack(int(row_groups[lane]), int(rows[lane]))
                    packs.append(as_padding(pack) if is_padding[lane] else pack)
                batch = self._collate(packs)
                batch["state"] = self._state(epoch, index + 1)
                self._position = epoch, index + busy
                yield batch
            self._shared.finish(get_worker_info())
        finally:
            loader.close()

    @property
    def _per_step(self) -> int:
        return self._num_lanes // self._micro_batch_size

    def _order(self, epoch: int) -> Order:
        return manifest_order(
            self.manifest.row_groups,
            global_batch_size=self._global_batch_size,
            seed=self._seed,
            epoch=epoch,
            shuffle=self._shuffle,
            end=self._end,
        )

    def _state(self, epoch: int, done: int) -> ReaderState:
        step, micro_batches = divmod(min(done, len(self)), self._per_step)
        return {
            "version": STATE_VERSION,
            "fingerprint": self.manifest.fingerprint,
            "order_version": ORDER_VERSION,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "end": self._end,
            "global_batch_size": self._global_batch_size,
            "epoch": epoch,
            "step": step,
            "lane": micro_batches * self._micro_batch_size,
        }


_OWN = "this dataset has {!r}: make it with the value of the state"
_ADVICE = {
    "version": "this code writes and reads {!r}: use the packing-udfs release that saved it",
    "order_version": "this code has {!r} and another order of packs: use the packing-udfs release that saved it",
    "fingerprint": "the manifest here is {!r}: the data is another; open the revision that the run was started with",
}


def _rank_and_world(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank}, world_size={world_size}: give both or none")
    if rank is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank={rank}, world_size={world_size}: rank must be in [0, world_size)")
    return rank, world_size


def _load_processor(path: str, packed_with: dict | None):
    if packed_with is None:  # without a manifest nobody knows
        return processors.fetch(path).load()
    files = processors.fetch(path, packed_with["revision"] if path == packed_with["name"] else "main")
    if files.fingerprint != packed_with["fingerprint"]:
        raise processors.ProcessorError(
            f"processor: {path} has the fingerprint {files.fingerprint}, the dataset was packed with "
            f"{packed_with['name']} (revision {packed_with['revision']}), fingerprint {packed_with['fingerprint']}: "
            "its tokens and pixels may differ; use that one"
        )
    return files.load()


def _load_manifest(source, split: str) -> manifest.Manifest:
    info_path = contract.MANIFEST_JSON.format(split=split)
    if isinstance(source, HubSource):
        source.pin(info_path)
    try:
        info = source.read_file(info_path)
    except FileNotFoundError:
        return manifest_from_footers(source, split)
    return manifest.load(info, source.read_file(contract.MANIFEST_PARQUET.format(split=split)))
