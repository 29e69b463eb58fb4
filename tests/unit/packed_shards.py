"""Shards packed for tests, of the demo and of made-up rows, and what must hold of any of them."""

import hashlib
from collections import Counter

import numpy as np
from PIL import Image

from packing_udfs.contract import IGNORE_INDEX
from packing_udfs.encode.encoder import Encoder
from packing_udfs.encode.images import read_size
from packing_udfs.parquet.write import write_shard
from packing_udfs.shard.pack_shard import PackedShard, PackSettings, pack_shard
from tests.unit import nasty_images
from tests.unit.demo_samples import as_spark_gives, content_id, message

END_OF_TURN = "<end_of_utterance>"
DEMO_SETTINGS = PackSettings(
    seq_len=4096, max_vision_cost=56, max_images_per_pack=10, max_images_per_sample=8, num_packs_per_row_group=4
)


def packs_of(packed: PackedShard) -> list[dict]:
    return [row for group in packed.row_groups() for row in group.to_pylist()]


def file_bytes(packed: PackedShard, tmp_path) -> bytes:
    path = tmp_path / "shard.parquet"
    write_shard(str(path), "data/train/00000.parquet", packed.row_groups())
    return path.read_bytes()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def provenance(row: dict) -> tuple:
    return row["source"], row["file"], row["row"], row["copy"]


def content(row: dict) -> tuple:
    """What a pack tells of a sample: id, source, image bytes in order, and what the assistant says without spaces.

    The space before an answer belongs to its first token where the tokenizer joins the two, and is then trained.
    """
    images = tuple(image["bytes"] for image in row["images"] or [] if image and image["bytes"])
    said = [m["content"] for m in row["messages"] or [] if m and m["role"] == "assistant"]
    text = "".join(
        part["text"] + END_OF_TURN for parts in said for part in parts or [] if part and part["text"] is not None
    )
    return row["sample_id"], row["source"], images, text.replace(" ", "")


def samples_in(packs: list[dict], encoder: Encoder) -> list[tuple]:
    """`content` of every sample in packs; checks on the way that each pack agrees with itself."""
    image_token = encoder.tokenizer.convert_tokens_to_ids("<image>")
    found = []
    for row in packs:
        ids, labels = np.asarray(row["input_ids"]), np.asarray(row["labels"])
        images, counts = row["images"], row["image_num_tokens"]
        assert len(ids) == len(labels) == sum(row["sample_lengths"]) == row["num_tokens"]
        assert (
            len(images) == len(counts) == len(row["image_sizes"]) == sum(row["sample_num_images"]) == row["num_images"]
        )
        assert row["num_label_tokens"] == (labels != IGNORE_INDEX).sum() > 0
        assert set(labels[labels != ids]) <= {IGNORE_INDEX}
        assert not (labels == image_token).any()
        per_sample = [row[name] for name in ("sample_lengths", "sample_num_images", "sample_ids", "sample_sources")]
        start = image = cost = 0
        for length, num_images, sample_id, source in zip(*per_sample, strict=True):
            sample, trained = ids[start : start + length], labels[start : start + length]
            mine = slice(image, image + num_images)
            assert (sample == image_token).sum() == sum(counts[mine])
            assert trained[0] == IGNORE_INDEX
            for size, stored, count in zip(row["image_sizes"][mine], images[mine], counts[mine], strict=True):
                assert (size["height"], size["width"]) == read_size(stored["bytes"])
                expansion = encoder.expand((size["height"], size["width"]))
                assert count == expansion.num_placeholders
                cost += expansion.vision_cost
            said = encoder.tokenizer.decode(trained[trained != IGNORE_INDEX], clean_up_tokenization_spaces=False)
            found.append((sample_id, source, tuple(stored["bytes"] for stored in images[mine]), said.replace(" ", "")))
            start, image = start + length, image + num_images
        assert row["vision_cost"] == cost
    return found


def assert_within_budgets(packs: list[dict], settings: PackSettings) -> None:
    for row in packs:
        assert 0 < row["num_tokens"] <= settings.seq_len
        assert settings.max_vision_cost is None or row["vision_cost"] <= settings.max_vision_cost
        assert settings.max_images_per_pack is None or row["num_images"] <= settings.max_images_per_pack
        assert settings.max_images_per_sample is None or max(row["sample_num_images"]) <= settings.max_images_per_sample


def duplicates_among(rows: list[dict]) -> list[dict]:
    """Rows that repeat an earlier one, in order of id and provenance: the slow and obvious way."""
    found, seen = [], []
    for row in sorted(rows, key=lambda row: (row["sample_id"], *provenance(row))):
        if row["reason"] is None:
            same = (row["sample_id"], row["copy"], [i and i["bytes"] for i in row["images"] or []], row["messages"])
            if same in seen:
                found.append(row)
            seen.append(same)
    return found


def assert_nothing_is_lost(rows: list[dict], packed: PackedShard, packs: list[dict], encoder: Encoder, dropped) -> None:
    """Every row is in a pack, in the quarantine or a duplicate, once; and the ledger counts them so."""
    quarantine = packed.quarantine.to_pylist()
    by_provenance = {provenance(row): row for row in rows}
    set_aside = [provenance(row) for row in quarantine] + [provenance(row) for row in dropped]
    assert len(set(set_aside)) == len(set_aside)
    in_packs = samples_in(packs, encoder)
    left = [content(row) for place, row in by_provenance.items() if place not in set_aside]
    assert Counter(in_packs) == Counter(left)
    counted = Counter()
    for line in packed.ledger.to_pylist():
        counted[line["source"], line["outcome"], line["reason"]] += line["num_rows"]
    expected = Counter((source, "packed", "") for _, source, _, _ in in_packs)
    expected.update((row["source"], "quarantined", row["reason"]) for row in quarantine)
    expected.update((row["source"], "duplicate", "") for row in dropped)
    assert counted == expected
    ledger = packed.ledger.to_pylist()
    assert sum(line["num_rows"] for line in ledger) == len(rows)
    assert sum(line["num_images"] for line in ledger) == sum(len(row["images"] or []) for row in rows)
    assert sum(line["num_turns_dropped"] for line in ledger) == sum(row["num_turns_dropped"] or 0 for row in rows)
    tokens = sum(row["num_tokens"] for row in packs) + sum(row["num_tokens"] or 0 for row in quarantine)
    assert sum(line["num_tokens"] for line in ledger) == tokens


def picture(height: int, width: int, colour: int) -> bytes:
    return nasty_images.save(Image.new("RGB", (width, height), (colour, 0, 0)), "PNG")


def sample(number: int, images=(), turns=(("Why?", "So."),), **changes) -> dict:
    images = [{"bytes": data, "path": f"{number}-{i}"} for i, data in enumerate(images)]
    messages = []
    for i, (question, answer) in enumerate(turns):
        messages += [message("user", question, len(images) if i == 0 else 0), message("assistant", answer)]
    row = {"source": "made", "file": "a.parquet", "row": number, "copy": 0, "messages": messages, "images": images}
    row |= {"reason": None, "num_turns_dropped": 0} | changes
    return {"sample_id": content_id(row["images"], row["messages"])} | row


def pack_rows(rows: list[dict], encoder, **changes) -> PackedShard:
    return pack_shard(as_spark_gives(rows), encoder, PackSettings(**{"seq_len": 2048} | changes))


def outcomes(packed: PackedShard) -> dict:
    return {(line["outcome"], line["reason"]): line["num_rows"] for line in packed.ledger.to_pylist()}


NULL_MESSAGES = {
    "null": None,
    "empty": [],
    "null message": [None],
    "null content": [{"role": "user", "content": None}],
    "null part": [{"role": "user", "content": [None]}],
    "null text": [message("user", "Why?"), message("assistant", None)],
}
