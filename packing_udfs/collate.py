"""Packs to a batch: padding, and everything a model needs to keep the samples of a pack apart.

Nothing of this is stored: it all follows from `sample_lengths`. Padding to seq_len exists in the batch only, behind the
last sample of a row. Worked example, one pack of two samples of 3 and 2 tokens, seq_len 7:

    input_ids       [5, 6, 7, 8, 9, 0, 0]
    segment_ids     [1, 1, 1, 2, 2, 0, 0]      samples count from 1, padding is 0
    position_ids    [0, 1, 2, 0, 1, 0, 1]      start again with each sample, and with the padding
    attention_mask  [1, 1, 1, 1, 1, 0, 0]      padding only
    cu_seqlens      [0, 3, 5, 7]               over the flattened batch, padding as one more sequence of its row

An attention mask of ones lets samples see each other. What keeps them apart is, by the model's attention:
`cu_seqlens` and `max_seqlen` (FlashAttention's varlen kernels; the padding is a sequence of its own, so the last entry
is the number of tokens in the batch and every query has a key), `position_ids` (transformers finds the same sequences
from its zeros), `segment_ids` (FlexAttention's mask functions) or `block_mask` (SDPA and eager).

Labels are unshifted, as transformers' models take them; a sample's first token is never a target, so no shift can
teach the end of one sample to predict the start of the next.

A batch without images would leave the vision tower out, and where its parameters are sharded the other ranks would
wait for it forever. `Blank` puts one small image behind the last sample of a row, in its padding: nothing of it is
learned and no sample sees it.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from packing_udfs.contract import IGNORE_INDEX, ContractError
from packing_udfs.encode.images import ImageError, decode

# What a processor makes of text; the batch has its own.
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
    """A batch of `packs`, as `packing_udfs.parquet.read.Packs` gives them.

    B packs, S = seq_len, N images in the batch:
    input_ids, labels, attention_mask, position_ids: int64 [B, S]; labels are -100 in padding.
    segment_ids: int32 [B, S]. cu_seqlens: int32 [number of sequences + 1]. max_seqlen: int, the longest sequence.
    sample_ids, sample_sources: B lists of ints, of strs. num_label_tokens: int64 [B], to weight a loss over ranks.
    is_padding: bool [B], packs that only fill a step. image_sizes: int32 [N, 2], (height, width) in pixels.
    images: B lists of PIL images (images="pil") or of pyarrow.Buffer ("bytes": encoded, bytes-like, no copy, so each
        keeps its row group in memory; `bytes(buffer)` to keep one). Absent with None or a processor.
    With `processor`: what its image processor returns for the images, a row of tiles a pack where the model takes
    them so (Idefics3: pixel_values [B, tiles, 3, H, W]) and else all in one; absent when there is no image.
    image_inputs: the names of those tensors, which are arguments of the model.
    With `blank`, a batch without images has one; S is larger where no row's padding has room for it.
    With `mrope`, a `packing_udfs.stream.mrope.MRope`, position_ids are int64 [4, B, S], as Qwen2-VL's kin takes them.

    Raises ContractError for an image that does not decode or has another size than the pack says, ValueError for a
    pack longer than seq_len.
    """
    is_blank = blank is not None and not any(len(pack["images"]) for pack in packs)
    lengths = [len(pack["input_ids"]) for pack in packs]
    shortest = lengths.index(min(lengths))
    if is_blank:
        blank_at = slice(lengths[shortest], lengths[shortest] + len(blank.ids))
        seq_len = max(seq_len, blank_at.stop)
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
    if is_blank:
        batch["input_ids"][shortest, blank_at] = torch.from_numpy(blank.ids)
        given = [[[blank.image]] if i == shortest else [] for i in range(len(packs))]
        tensors = pixels(processor, given, **blank.options)
    elif processor is not None:
        tensors = pixels(processor, [_of_samples(pack, decode_images(pack)) for pack in packs])
    elif images == "pil":
        batch["images"] = [decode_images(pack) for pack in packs]
    elif images == "bytes":
        batch["images"] = [pack["images"] for pack in packs]
    return {**batch, **tensors, "image_inputs": list(tensors)}


def _tokens(packs: Sequence[dict], seq_len: int, pad_token_id: int) -> dict:
    # NumPy, not torch: on arrays of this size torch's threads cost more than the work. Each number is written once.
    shape = (len(packs), seq_len)
    input_ids, labels, attention_mask = (np.empty(shape, np.int64) for _ in range(3))
    lengths, segments = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    for i, pack in enumerate(packs):
        n = len(pack["input_ids"])
        if n > seq_len:
            raise ValueError(f"{_where(pack)}: {n} tokens, seq_len={seq_len}: use the one it was packed with")
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
    """The image that a batch without images is given: a white one in a grid as small as the processor makes."""

    def __init__(self, processor):
        from PIL import Image

        image_processor = processor.image_processor
        self.options = {"do_image_splitting": False} if hasattr(image_processor, "do_image_splitting") else {}
        self.image = Image.new("RGB", (64, 64), "white")
        encoded = processor(text=[processor.image_token], images=[[self.image]], **self.options)
        self.ids = np.asarray(encoded["input_ids"][0], np.int64)


def block_mask(segment_ids: torch.Tensor) -> torch.Tensor:
    """Who may attend to whom, for `scaled_dot_product_attention`: segment_ids [B, S] to bool [B, 1, S, S].

    A token sees itself and what comes before it in its own sample. Padding sees padding, so no row is all false, which
    would make its softmax NaN.
    """
    same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    return same.tril()


def decode_images(pack: dict) -> list:
    """The pack's images as PIL images, RGB, upright. Raises ContractError naming the pack when one does not decode or
    is not of the size in `image_sizes`: its placeholders would not fit its pixels."""
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
    """A pack's images, one list a sample."""
    ends = np.cumsum(np.asarray(pack["sample_num_images"])).tolist()
    return [images[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def pixels(processor, images: Sequence[Sequence[list]], **options) -> dict:
    """The tensors that the processor's model takes for the images of each sample of each pack.

    A processor whose model takes images by batch row (it returns a `pixel_attention_mask`) is given one list a pack, a
    pack without images an empty one. The others are called as for the samples one by one, with nothing but
    placeholders for text: some of them treat an image in company in another way than one that is alone, and some
    have settings of their own for their image processor.
    """
    if not any(sample for pack in images for sample in pack):
        return {}
    if "pixel_attention_mask" in processor.image_processor.model_input_names:
        by_row = [[image for sample in pack for image in sample] for pack in images]
        return dict(processor.image_processor(images=by_row, return_tensors="pt", **options))
    samples = [sample for pack in images for sample in pack if sample]
    texts = [processor.image_token * len(sample) for sample in samples]
    made = processor(text=texts, images=samples, padding=True, return_tensors="pt", **options)
    return {name: value for name, value in made.items() if name not in _TEXT_INPUTS}


def _where(pack: dict) -> str:
    return "{file} row group {row_group} row {row}".format(**pack)
