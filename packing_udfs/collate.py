"""Packs to a batch: padding, and everything a model needs to keep the samples of a pack apart.

All of it follows from `sample_lengths`; nothing is stored. Padding to seq_len exists in the batch only, after the last
sample of a row. Worked example, one pack of two samples of 3 and 2 tokens, seq_len 7:

    input_ids       [5, 6, 7, 8, 9, 0, 0]
    segment_ids     [1, 1, 1, 2, 2, 0, 0]      samples count from 1, padding is 0
    position_ids    [0, 1, 2, 0, 1, 0, 1]      start again in each sample and in the padding
    attention_mask  [1, 1, 1, 1, 1, 0, 0]      padding only
    cu_seqlens      [0, 3, 5, 7]               over the flattened batch; a row's padding is one more sequence

With an attention mask of ones, samples see each other. What keeps them apart depends on the model's attention:
`cu_seqlens` and `max_seqlen` (FlashAttention's varlen kernels; padding is a sequence, so the last entry is the number
of tokens in the batch and every query has a key), `position_ids` (transformers finds the same sequences by its zeros),
`segment_ids` (FlexAttention's mask functions) or `block_mask` (SDPA and eager).

Labels are unshifted, as transformers' models take them. A sample's first token is never a target, so no shift teaches
the end of one sample to predict the start of the next.

A batch without images would not run the vision tower, and if its parameters are sharded, other ranks would wait
forever. `Blank` puts one small image into the padding of a row: the model learns nothing from it and no sample sees it.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

import numpy as np
import torch

from packing_udfs.contract import IGNORE_INDEX, ContractError
from packing_udfs.encode.images import ImageError, decode
from packing_udfs.walk import slices

__all__ = ["Blank", "block_mask", "collate", "decode_images", "pixels"]

# A processor makes these from text; the batch has its own.
_TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")


def collate(
    packs: Sequence[dict],
    seq_len: int,
    *,
    processor=None,
    pad_token_id: int = 0,
    images: str | None = "pil",
    blank: "Blank | None" = None,
    mrope=None,
) -> dict:
    """A batch of `packs` (`packing_udfs.parquet.read.Packs`): B packs, S = seq_len, N images.

    input_ids, labels, attention_mask, position_ids: int64 [B, S]; labels are -100 in padding.
    segment_ids: int32 [B, S]. cu_seqlens: int32 [number of sequences + 1]. max_seqlen: int, the longest sequence.
    sample_ids, sample_sources: B lists of ints, of strs. num_label_tokens: int64 [B], to weight a loss over ranks.
    is_padding: bool [B], packs that only fill a step. image_sizes: int32 [N, 2], (height, width) in pixels.
    images: B lists of PIL images (images="pil") or of pyarrow.Buffer ("bytes": encoded, bytes-like, not copied, so each
        keeps its row group in memory; use `bytes(buffer)` to keep one). Absent with None or a processor.
    With `processor`: the tensors of its image processor, a row of tiles per pack if the model takes them so (Idefics3:
    pixel_values [B, tiles, 3, H, W]), else all in one; absent without images.
    image_inputs: the names of those tensors, which are arguments of the model.
    With `blank`, a batch without images gets one; S is larger if no row's padding has room for it.
    With `mrope`, a `packing_udfs.stream.mrope.MRope`, position_ids are int64 [4, B, S], as Qwen2-VL and its successors
    take them.

    Raises ContractError for an image that does not decode or has another size than the pack says, ValueError for a
    pack longer than seq_len.
    """
    filler = None if any(len(pack["images"]) for pack in packs) else blank
    lengths = [len(pack["input_ids"]) for pack in packs]
    shortest = lengths.index(min(lengths))
    if filler:
        seq_len = max(seq_len, lengths[shortest] + len(filler.ids))
    batch = _tokens(packs, seq_len, pad_token_id)
    if mrope is not None:
        from packing_udfs.stream.mrope import stacked

        batch["position_ids"] = stacked(mrope, batch["position_ids"], packs)
    batch["sample_ids"] = [np.asarray(pack["sample_ids"]).tolist() for pack in packs]
    batch["sample_sources"] = [pack["sample_sources"] for pack in packs]
    batch["num_label_tokens"] = torch.from_numpy(np.array([pack["num_label_tokens"] for pack in packs]))
    batch["is_padding"] = torch.from_numpy(np.array([pack.get("is_padding", False) for pack in packs]))
    batch["image_sizes"] = torch.from_numpy(np.concatenate([np.asarray(pack["image_sizes"]) for pack in packs]))
    tensors = {}
    if filler:
        batch["input_ids"][shortest, lengths[shortest] :][: len(filler.ids)] = torch.from_numpy(filler.ids)
        given = [[[filler.image]] if i == shortest else [] for i in range(len(packs))]
        tensors = pixels(processor, given, **filler.options)
    elif processor is not None:
        tensors = pixels(processor, [_of_samples(pack, decode_images(pack)) for pack in packs])
    elif images == "pil":
        batch["images"] = [decode_images(pack) for pack in packs]
    elif images == "bytes":
        batch["images"] = [pack["images"] for pack in packs]
    return {**batch, **tensors, "image_inputs": list(tensors)}


def _tokens(packs: Sequence[dict], seq_len: int, pad_token_id: int) -> dict:
    # NumPy: for arrays of this size torch's threads cost more than the work. Each number is written once.
    shape = (len(packs), seq_len)
    input_ids, labels, attention_mask = (np.empty(shape, np.int64) for _ in range(3))
    lengths, segments = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    for i, pack in enumerate(packs):
        n = len(pack["input_ids"])
        if n > seq_len:
            raise ValueError(f"{_where(pack)}: {n} tokens, seq_len={seq_len}: use the seq_len it was packed with")
        input_ids[i, :n], input_ids[i, n:] = pack["input_ids"], pad_token_id
        labels[i, :n], labels[i, n:] = pack["labels"], IGNORE_INDEX
        attention_mask[i, :n], attention_mask[i, n:] = 1, 0
        lengths.append(np.asarray(pack["sample_lengths"]))
        segments.append(np.arange(1, len(lengths[-1]) + 1, dtype=np.int32))
        if n < seq_len:
            lengths.append(np.array([seq_len - n]))
            segments.append(np.zeros(1, np.int32))
    lengths = np.concatenate(lengths)
    ends = lengths.cumsum()
    position_ids = (ends - lengths).repeat(lengths)
    np.subtract(_ramp(position_ids.size), position_ids, out=position_ids)
    arrays = {
        "input_ids": input_ids,
        "labels": labels,
        "attention_mask": attention_mask,
        "position_ids": position_ids.reshape(shape),
        "segment_ids": np.concatenate(segments).repeat(lengths).reshape(shape),
        "cu_seqlens": np.concatenate([[0], ends]).astype(np.int32),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()} | {"max_seqlen": int(lengths.max())}


@lru_cache(maxsize=2)
def _ramp(num: int) -> np.ndarray:
    return np.arange(num)


class Blank:
    """The image for a batch without images: white, in the smallest grid that the processor makes."""

    def __init__(self, processor):
        from PIL import Image

        image_processor = processor.image_processor
        self.options = {"do_image_splitting": False} if hasattr(image_processor, "do_image_splitting") else {}
        self.image = Image.new("RGB", (64, 64), "white")
        encoded = processor(text=[processor.image_token], images=[[self.image]], **self.options)
        self.ids = np.asarray(encoded["input_ids"][0], np.int64)


def block_mask(segment_ids: torch.Tensor) -> torch.Tensor:
    """Which token attends to which, for `scaled_dot_product_attention`: segment_ids [B, S] to bool [B, 1, S, S].

    A token sees itself and earlier tokens of its sample. Padding sees padding, since softmax of only False is NaN.
    """
    same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    return same.tril()


def decode_images(pack: dict) -> list:
    """The pack's images as PIL images, RGB, upright. Raises ContractError for an image that does not decode or whose
    size is not that of `image_sizes`: its placeholders would not fit its pixels."""
    decoded = []
    for i, (data, size) in enumerate(zip(pack["images"], np.asarray(pack["image_sizes"]).tolist(), strict=True)):
        try:
            image = decode(bytes(data))
        except ImageError as error:
            raise ContractError(f"{_where(pack)}: image {i} does not decode: {error}") from error
        if [image.height, image.width] != size:
            raise ContractError(
                f"{_where(pack)}: image {i} decodes to {image.height} × {image.width} pixels (height × width), "
                f"encoded were {size[0]} × {size[1]}"
            )
        decoded.append(image)
    return decoded


def _of_samples(pack: dict, images: list) -> list[list]:
    """A pack's images, one list per sample."""
    return [images[part] for part in slices(pack["sample_num_images"])]


def pixels(processor, images: Sequence[Sequence[list]], **options) -> dict:
    """The tensors that the processor's model takes for the images of each sample of each pack.

    If the model takes images by batch row (its processor returns a `pixel_attention_mask`), the image processor gets a
    list per pack, also an empty one. Another processor gets each sample, with only placeholders as text: some treat
    several images in another way than one, and some have settings of their own for their image processor.
    """
    samples = [sample for pack in images for sample in pack if sample]
    if not samples:
        return {}
    if "pixel_attention_mask" in processor.image_processor.model_input_names:
        by_row = [list(chain.from_iterable(pack)) for pack in images]
        return dict(processor.image_processor(images=by_row, return_tensors="pt", **options))
    texts = [processor.image_token * len(sample) for sample in samples]
    made = processor(text=texts, images=samples, padding=True, return_tensors="pt", **options)
    return {name: value for name, value in made.items() if name not in _TEXT_INPUTS}


def _where(pack: dict) -> str:
    return "{file} row group {row_group} row {row}".format(**pack)
