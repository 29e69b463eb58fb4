"""Batches in the form that a training loop takes: functions for DataLoader's `collate_fn`.

    loader = DataLoader(dataset, batch_size=None, num_workers=4, collate_fn=for_flash_attention)

They leave out what is no argument of a model (`state`, `sample_ids`, …); a loop that needs both calls them itself.

accelerate and the transformers Trainer deal batches out to the ranks, which the reader has already done. So do not give
them the loader. With accelerate, call `prepare(model, optimizer)` only. The Trainer needs a subclass and a callback;
it then resumes a checkpoint without reading what it has already trained on:

    class PackedTrainer(Trainer):
        def get_train_dataloader(self):
            return DataLoader(self.train_dataset, batch_size=None, collate_fn=for_sdpa)

    PackedTrainer(model, TrainingArguments(..., ignore_data_skip=True, gradient_accumulation_steps=
        dataset.micro_batches_per_step), train_dataset=dataset, callbacks=[trainer_callback(dataset)])
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch

from packing_udfs.collate import block_mask
from packing_udfs.contract import IGNORE_INDEX
from packing_udfs.stream.resume import StepDataset

__all__ = [
    "flex_mask",
    "for_flash_attention",
    "for_nanovlm",
    "for_sdpa",
    "loss_by_source",
    "trainer_callback",
    "with_image_bytes",
]


def for_sdpa(batch: dict) -> dict:
    """Arguments of a transformers model with SDPA attention: `attention_mask` is a bool block mask [B, 1, S, S]."""
    return _inputs(batch) | {"attention_mask": block_mask(batch["segment_ids"])}


def for_flash_attention(batch: dict) -> dict:
    """Arguments of a transformers model with FlashAttention: the rows one after another, [1, B · S], and where the
    sequences start: cu_seq_lens_q, cu_seq_lens_k (int32), max_length_q, max_length_k. No mask."""
    flat = {}
    for name, value in _inputs(batch).items():
        if name in ("input_ids", "labels", "position_ids"):
            value = value.flatten(-2).unsqueeze(-2)
        elif "pixel_attention_mask" in batch:  # images by row: all of them belong to the one row
            value = value.flatten(0, 1)[None]
        flat[name] = value
    ends, longest = batch["cu_seqlens"], batch["max_seqlen"]
    return flat | {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def flex_mask(segment_ids: torch.Tensor) -> Callable:
    """`block_mask` for FlexAttention: `create_block_mask(flex_mask(segment_ids), B, None, S, S)`."""

    def same_sample_before(b, h, q, kv):
        return (segment_ids[b, q] == segment_ids[b, kv]) & (q >= kv)

    return same_sample_before


def for_nanovlm(batch: dict) -> dict:
    """What nanoVLM's training loop takes: input_ids, attention_mask, labels shifted by one (its model does not shift),
    images as one list per pack of tensors [tiles, 3, H, W]. Its attention only masks padding, so a sample sees earlier
    samples of its pack. Needs a processor that makes tiles (pixel_values [B, tiles, 3, H, W])."""
    labels = batch["labels"].roll(-1, dims=1)  # the first label, now the last, is never a target
    images = [[] for _ in labels]
    if "pixel_values" in _inputs(batch):
        is_tile = batch["pixel_attention_mask"].flatten(2).any(-1)
        rows = zip(batch["pixel_values"], is_tile, strict=True)
        images = [[tiles[used]] if used.any() else [] for tiles, used in rows]
    return {name: batch[name] for name in ("input_ids", "attention_mask")} | {"labels": labels, "images": images}


def with_image_bytes(batch: dict) -> dict:
    """The batch with its encoded images (decode="bytes") copied to `bytes`, which keep no row group in memory."""
    return {**batch, "images": [list(map(bytes, of_pack)) for of_pack in batch["images"]]}


def loss_by_source(logits: torch.Tensor, batch: dict) -> dict[str, torch.Tensor]:
    """source → float32 [2]: the sum of its tokens' cross-entropy, and their number. Add up over ranks, then divide.

    logits: [B, S, vocabulary] for `batch["input_ids"]`, unshifted.
    """
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2).float(), batch["labels"][:, 1:], ignore_index=IGNORE_INDEX, reduction="none"
    )
    sources, out = batch["sample_sources"], {}
    for row in range(len(sources)):
        segments, trained = batch["segment_ids"][row, 1:], batch["labels"][row, 1:] != IGNORE_INDEX
        for segment, source in enumerate(sources[row], start=1):
            of_sample = (segments == segment) & trained
            total = torch.stack([losses[row][of_sample].sum(), of_sample.sum()])
            out[source] = out[source] + total if source in out else total
    return out


def trainer_callback(dataset: StepDataset):
    """A callback for the transformers Trainer. It sets the dataset's position at the start of each epoch, also after a
    checkpoint is resumed, and saves the state in each checkpoint as `reader.json`, so that other data is refused."""
    from transformers import TrainerCallback

    def path(args, state) -> Path:
        return Path(args.output_dir, f"checkpoint-{state.global_step}", "reader.json")

    def resumed_from(args, state) -> list[Path]:
        """Where the state may be: the Trainer does not tell the argument of `train(resume_from_checkpoint=…)`."""
        given = args.resume_from_checkpoint
        return [path(args, state), *([Path(given, "reader.json")] if isinstance(given, str) else [])]

    class FollowTrainer(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            for saved in filter(Path.exists, resumed_from(args, state)):
                dataset.load_state_dict(json.loads(saved.read_text()))

        def on_epoch_begin(self, args, state, control, **kwargs):
            dataset.seek(*divmod(state.global_step, dataset.num_steps))

        def on_save(self, args, state, control, **kwargs):
            if state.is_world_process_zero:
                at = divmod(state.global_step, dataset.num_steps)
                path(args, state).write_text(json.dumps(dataset.state_at(*at)))

    return FollowTrainer()


def _inputs(batch: dict) -> dict:
    if any(batch.get("images", ())):
        raise ValueError("a batch has images but no pixels: give PackedDataset the processor, or decode=None")
    return {name: batch[name] for name in ("input_ids", "labels", "position_ids", *batch["image_inputs"])}
