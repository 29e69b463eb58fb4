"""Ready-to-train tokens a second of one core: read from packs, against tokenised and packed in the training loop.

The peer is nanoVLM's procedure, rebuilt (`tests.bench.peers.nanovlm` for the packing): the chat template over the whole
conversation and over each message, to find what is trained; labels shifted; a buffer of packs, knapsacked and
concatenated. Both read from Parquet files and pass images through as bytes, so that neither makes pixels. Real tokens
count, not padding. CPU time of the process.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from transformers import AutoProcessor

from packing_udfs.encode.encoder import Encoder
from packing_udfs.encode.images import ImageError, read_size
from packing_udfs.parquet.write import write_shard
from packing_udfs.reader import PackedDataset
from packing_udfs.shard.pack_shard import PackSettings, pack_shard
from tests.bench import peers, reader_files
from tests.unit.demo_samples import DEMO, as_spark_gives, demo_rows

REPEATS, ROUNDS = 20, 3


def run() -> Iterator[dict]:
    """tokens_vs_pack_in_loop."""
    encoder = Encoder(AutoProcessor.from_pretrained(DEMO / "processor"))
    with tempfile.TemporaryDirectory(prefix="bench-in-loop-") as folder:
        root = Path(folder)
        (root / "once/data/train").mkdir(parents=True)
        packed = pack_shard(as_spark_gives(demo_rows()), encoder, PackSettings(seq_len=reader_files.SEQ_LEN))
        name = "data/train/00000.parquet"
        rows = write_shard(str(root / "once" / name), name, packed.row_groups())
        reader_files.write_manifest(root / "once", rows)
        reader_files.repeat(root / "once", root / "packed", REPEATS)
        ours = max(_from_packs(root / "packed") for _ in range(ROUNDS))
    theirs = max(_in_the_loop(encoder) for _ in range(ROUNDS))
    yield {
        "metric": "tokens_vs_pack_in_loop",
        "input": f"the demo's samples, {sum(rows['num_samples'].to_pylist())} packed, {REPEATS} times over",
        "ours": round(ours / theirs, 1),
        "peer": {"nanoVLM's procedure": round(theirs)},
        "unit": f"tokens/s of CPU time, ratio; ours {ours:.0f}",
    }


def _from_packs(root: Path) -> float:
    """Tokens a CPU second: whole batches, padded, with labels, masks and positions."""
    dataset = PackedDataset(str(root), global_batch_size=8, decode="bytes")
    count, start = 0, time.process_time()
    for batch in dataset:
        count += int(batch["attention_mask"].sum())
    return count / (time.process_time() - start)


def _in_the_loop(encoder: Encoder) -> float:
    """Tokens a CPU second of the peer, over the source once."""
    tokenizer = encoder.tokenizer
    start = time.process_time()
    encoded = []
    for file in sorted((DEMO / "source").rglob("*.parquet")):
        for row in pq.read_table(file, columns=["images", "texts"]).to_pylist():
            if not row["texts"] or any(None in turn.values() for turn in row["texts"]):
                continue
            try:
                sizes = [read_size(image["bytes"]) for image in row["images"]]
            except ImageError:
                continue
            pictures = "".join(_pictures(encoder, size) for size in sizes)
            messages = []
            for turn in row["texts"]:
                user = [{"type": "text", "text": pictures + turn["user"]}]
                messages.append({"role": "user", "content": user})
                messages.append({"role": "assistant", "content": [{"type": "text", "text": turn["assistant"]}]})
                pictures = ""
            encoded.append((*_ids_and_labels(tokenizer, messages), [image["bytes"] for image in row["images"]]))
    lengths = np.array([len(ids) for ids, _, _ in encoded])
    fitting = np.flatnonzero(lengths < reader_files.SEQ_LEN)
    num_images = np.array([len(images) for _, _, images in encoded])
    count = 0
    for members in peers.nanovlm(lengths[fitting], num_images[fitting], reader_files.SEQ_LEN, 8):
        parts = [encoded[fitting[i]] for i in members]
        ids, labels = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        padded = np.zeros((3, reader_files.SEQ_LEN), np.int64)
        padded[0, : len(ids)], padded[1, : len(ids)], padded[2, : len(ids)] = ids, labels, 1
        count += len(ids)
    return count / (time.process_time() - start)


def _pictures(encoder: Encoder, size: tuple[int, int]) -> str:
    """What stands for an image in the text, as nanoVLM writes it into the first message."""
    return encoder.tokenizer.decode(encoder.family.expand((size,))[0].ids)


def _ids_and_labels(tokenizer, messages: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    ids = np.array(tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"])
    trained, at = np.zeros(len(ids), bool), 0
    for message in messages:
        length = len(tokenizer.apply_chat_template([message], tokenize=True, return_dict=True)["input_ids"])
        trained[at : at + length] = message["role"] == "assistant"
        at += length
    labels = np.where(trained, ids, -100)
    return ids, np.append(labels[1:], -100)
