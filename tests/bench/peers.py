"""What others pack with, called or rebuilt: packs as lists of sample indices."""

import heapq

import binpacking
import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, disable_progress_bars
from trl.data_utils import pack_dataset


def trl(lengths: np.ndarray, seq_len: int) -> list[list[int]]:
    """TRL's best-fit decreasing, its own code; it knows tokens only."""
    disable_progress_bars()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    indices = pa.array(np.repeat(np.arange(len(lengths)), lengths), pa.int32())  # a token is its sample's index
    table = pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, indices)})
    packed = pack_dataset(Dataset(table), seq_len, strategy="bfd", map_kwargs={"batch_size": len(lengths)})
    return [np.asarray(row["input_ids"])[np.cumsum([0, *row["seq_lengths"][:-1]])].tolist() for row in packed.to_list()]


def binpacking_volume(lengths: np.ndarray, seq_len: int) -> list[list[int]]:
    """`binpacking.to_constant_volume`, as ms-swift calls it on (index, length); it knows tokens only."""
    packs = binpacking.to_constant_volume(list(enumerate(lengths.tolist())), seq_len, weight_pos=1)
    return [[index for index, _ in pack] for pack in packs]


def nanovlm(
    lengths: np.ndarray, num_images: np.ndarray, seq_len: int, buffer_packs: int, max_images: int = 18
) -> list[list[int]]:
    """nanoVLM's procedure, rebuilt: read a buffer of `buffer_packs` packs' tokens, then knapsack it.

    A sample takes one token more than it has, a pad behind it. The buffer's samples, longest first, each go to the
    least loaded of ⌈tokens / seq_len⌉ + 5 packs where tokens and images fit, else to a new one. Packs that stay empty
    are not produced. What its training drops first (4,096 tokens or more, more than 4 images) is the caller's business.
    """
    lengths = lengths + 1
    packs, start, total = [], 0, 0
    for end, length in enumerate(lengths.tolist(), 1):
        total += length
        if total >= buffer_packs * seq_len or end == len(lengths):
            packs += _knapsack(
                np.arange(start, end), lengths, num_images, seq_len, -(-total // seq_len) + 5, max_images
            )
            start, total = end, 0
    return packs


def _knapsack(members, lengths, num_images, seq_len, num_packs, max_images) -> list[list[int]]:
    packs: list[list[int]] = [[] for _ in range(num_packs)]
    images = [0] * num_packs
    loads = [(0, i) for i in range(num_packs)]
    for index in members[np.argsort(-lengths[members], kind="stable")].tolist():
        skipped = []
        while (
            loads and loads[0][0] + lengths[index] <= seq_len and images[loads[0][1]] + num_images[index] > max_images
        ):
            skipped.append(heapq.heappop(loads))
        if not loads or loads[0][0] + lengths[index] > seq_len:
            packs.append([])
            images.append(0)
            heapq.heappush(loads, (0, len(packs) - 1))
        load, at = heapq.heappop(loads)
        packs[at].append(index)
        images[at] += int(num_images[index])
        for entry in [*skipped, (load + int(lengths[index]), at)]:
            heapq.heappush(loads, entry)
    return [pack for pack in packs if pack]


def nanovlm_sample(input_ids: np.ndarray, labels: np.ndarray) -> dict[str, torch.Tensor]:
    """A sample as nanoVLM's dataset yields it to its packing: tensors, with an attention mask."""
    ids = torch.from_numpy(input_ids)
    return {"input_ids": ids, "labels": torch.from_numpy(labels), "attention_mask": torch.ones_like(ids)}


def nanovlm_pack(samples: list[dict[str, torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """(input ids, labels, attention mask) of a pack, rebuilt: lists extended token by token, then stacked."""
    columns: dict[str, list[torch.Tensor]] = {"input_ids": [], "labels": [], "attention_mask": []}
    for sample in samples:
        for name, tokens in columns.items():
            tokens.extend(sample[name])
    return tuple(torch.stack(tokens) for tokens in columns.values())
