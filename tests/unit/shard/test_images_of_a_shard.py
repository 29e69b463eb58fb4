"""What packing a shard does to images: nothing, or what the configuration asks for."""

import io

import numpy as np
from PIL import Image

from packing_udfs.collate import decode_images
from packing_udfs.config import Images
from packing_udfs.shard.pack_shard import PackedShard
from tests.unit import nasty_images
from tests.unit.packed_shards import (
    digest,
    file_bytes,
    outcomes,
    pack_rows,
    packs_of,
    picture,
    sample,
    samples_in,
)


def stored_images(packed: PackedShard) -> list[dict]:
    return [image for row in packs_of(packed) for image in row["images"]]


def test_image_bytes_are_those_of_the_source(rows, packed):
    """By hash, of everything packed in the demo."""
    given = {digest(image["bytes"]) for row in rows for image in row["images"] or [] if image and image["bytes"]}
    stored = [digest(image["bytes"]) for image in stored_images(packed)]
    assert len(stored) > 200
    assert set(stored) <= given
    assert {line["num_images_reencoded"] for line in packed.ledger.to_pylist()} == {0}


def test_a_cut_body_is_found_by_decoding(encoder):
    """The header of half a JPEG still tells its size."""
    cut = nasty_images.files()["JPEG cut in half"].data
    rows = [sample(0, [picture(8, 8, 1), cut]), sample(1, [picture(8, 8, 2)])]
    assert outcomes(pack_rows(rows, encoder, seq_len=4096)) == {("packed", ""): 2}
    packed = pack_rows(rows, encoder, seq_len=4096, images=Images(verify="decode"))
    assert outcomes(packed) == {("packed", ""): 1, ("quarantined", "image_broken"): 1}
    (row,) = packed.quarantine.to_pylist()
    assert (row["row"], row["num_images"], row["num_tokens"]) == (0, 2, None)
    assert row["detail"].startswith("OSError: image file is truncated")


def test_a_large_image_is_scaled_down(encoder, tmp_path):
    """What is stored decodes, in the reader, to the size that was encoded; its path stays, small images stay."""
    turned = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 1200, 3), np.uint8))
    large = nasty_images.save(turned, "JPEG", exif=nasty_images.exif(6))  # upright: 1200 high, 300 wide
    small = picture(8, 600, 1)
    rows = [sample(0, [large, small]), sample(1, [large], copy=1), sample(2, [small])]
    packed = pack_rows(rows, encoder, seq_len=4096, images=Images(max_side=600))
    packs = packs_of(packed)
    found = {
        image["path"]: (image["bytes"], (size["height"], size["width"]))
        for row in packs
        for image, size in zip(row["images"], row["image_sizes"], strict=True)
    }
    assert {path: size for path, (_, size) in found.items()} == {
        "0-0": (600, 150), "0-1": (8, 600), "1-0": (600, 150), "2-0": (8, 600)
    }  # fmt: skip
    assert found["0-1"][0] == found["2-0"][0] == small
    assert found["0-0"][0] == found["1-0"][0] != large
    assert Image.open(io.BytesIO(found["0-0"][0])).format == "JPEG"
    for row in packs:
        pack = row | {"images": [image["bytes"] for image in row["images"]]}
        pack["image_sizes"] = [(size["height"], size["width"]) for size in row["image_sizes"]]
        decoded = decode_images(pack)  # raises for an image of another size
        assert [(image.height, image.width) for image in decoded] == pack["image_sizes"]
    (line,) = packed.ledger.to_pylist()
    assert (line["outcome"], line["num_images"], line["num_images_reencoded"]) == ("packed", 4, 2)
    assert len(samples_in(packs, encoder)) == 3  # placeholders are those of the new sizes
    again = pack_rows(rows[::-1], encoder, seq_len=4096, images=Images(max_side=600))
    assert file_bytes(again, tmp_path) == file_bytes(packed, tmp_path)


def test_duplicates_are_by_the_bytes_of_the_source(encoder):
    """Two files of the same picture are two samples, though both are scaled down to the same bytes."""
    image = Image.new("RGB", (64, 64), (9, 9, 9))
    rows = [sample(i, [nasty_images.save(image, "PNG", compress_level=level)]) for i, level in enumerate((1, 9, 9))]
    packed = pack_rows(rows, encoder, seq_len=4096, images=Images(max_side=32))
    assert outcomes(packed) == {("duplicate", ""): 1, ("packed", ""): 2}
    first, second = (image["bytes"] for image in stored_images(packed))
    assert first == second
    counts = {line["outcome"]: line["num_images_reencoded"] for line in packed.ledger.to_pylist()}
    assert counts == {"duplicate": 0, "packed": 2}


def test_a_row_with_a_broken_image_has_none_reencoded(encoder):
    large, cut = picture(64, 64, 1), nasty_images.files()["JPEG cut in its header"].data
    packed = pack_rows([sample(0, [large, cut])], encoder, images=Images(max_side=32))
    (line,) = packed.ledger.to_pylist()
    assert (line["reason"], line["num_images"], line["num_images_reencoded"]) == ("image_broken", 2, 0)
