"""A training script as anyone writes it: a tiny vision-language model under DistributedDataParallel.

    torchrun --nproc-per-node 2 tests/reader/recipe.py FOLDER OUTPUT [--workers N] [--pause-after STEP]

After each step it keeps OUTPUT/checkpoint, with the losses so far; started again, it goes on from there. With
--pause-after it stops behind that step and waits to be killed.
"""

import argparse
import os
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from packing_udfs.collate import block_mask
from packing_udfs.reader import PackedDataset

IMAGE_ID, VOCABULARY, WIDTH, EPOCHS = 1000, 1001, 32, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, mask):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        x = x + self.out(scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class TinyVLM(nn.Module):
    """Two layers; an image is 4 × 4 pixels, projected to the embedding of its one placeholder."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(64, WIDTH)
        self.vision, self.head = nn.Linear(48, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, input_ids, position_ids, segment_ids, pixels):
        is_image = (input_ids == IMAGE_ID)[..., None]
        x = self.tokens(input_ids).masked_scatter(is_image, self.vision(pixels)) + self.positions(position_ids)
        mask = block_mask(segment_ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def pixels_of(batch: dict) -> torch.Tensor:
    small = [np.asarray(image.resize((4, 4)), np.float32) / 255 for images in batch["images"] for image in images]
    return torch.from_numpy(np.stack(small)).flatten(1) if small else torch.zeros(0, 48)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("output", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--pause-after", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    (args.output / f"pid{dist.get_rank()}").write_text(str(os.getpid()))
    dataset = PackedDataset(args.folder, global_batch_size=8, micro_batch_size=2, end="pad")
    model = DistributedDataParallel(TinyVLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    checkpoint, losses, first_epoch = args.output / "checkpoint", [], 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        dataset.load_state_dict(saved["reader"])
        losses, first_epoch = saved["losses"], saved["reader"]["epoch"]
    for epoch in range(first_epoch, EPOCHS):
        dataset.set_epoch(epoch)
        micro_batches = []
        for batch in DataLoader(dataset, batch_size=None, num_workers=args.workers):
            micro_batches.append(batch)
            if len(micro_batches) == dataset.micro_batches_per_step:
                losses.append(train_step(model, optimizer, micro_batches))
                micro_batches = []
                if dist.get_rank() == 0:
                    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({"losses": losses, "reader": batch["state"], **parts}, args.output / "draft")
                    (args.output / "draft").replace(checkpoint)
                dist.barrier()
                while len(losses) == args.pause_after:
                    time.sleep(1)
    dist.destroy_process_group()


def train_step(model, optimizer, micro_batches: list[dict]) -> float:
    """Loss per trained token over all ranks: each rank's sum is scaled so that DDP's mean over ranks is that."""
    num_tokens = sum(batch["num_label_tokens"].sum() for batch in micro_batches).float()
    dist.all_reduce(num_tokens)
    total = torch.zeros(())
    for i, batch in enumerate(micro_batches):
        model.require_backward_grad_sync = i == len(micro_batches) - 1
        logits = model(batch["input_ids"], batch["position_ids"], batch["segment_ids"], pixels_of(batch))
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")
        (loss * dist.get_world_size() / num_tokens).backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total)
    return (total / num_tokens).item()


if __name__ == "__main__":
    main()
    assert threading.active_count() == 1, threading.enumerate()
    # Under DistributedDataParallel Gloo's threads outlive the process group (torch 2.13). One that is late to let go of
    # a reduced tensor asks for the interpreter, and if that has ended it aborts: "terminate called without an active
    # exception" (pytorch/pytorch#190489). So leave without ending the interpreter.
    os._exit(0)
