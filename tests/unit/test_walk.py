"""From packs to samples, worked out by hand."""

import numpy as np
import pytest

from packing_udfs import walk
from packing_udfs.shard.assemble import assemble, units_of
from tests.unit.made_packs import made_pack, packs_table


def test_runs():
    assert walk.offsets([2, 0, 1]).tolist() == [0, 2, 2, 3]
    assert walk.offsets([]).tolist() == [0]
    assert walk.slices(np.asarray([2, 1], np.int32)) == [slice(0, 2), slice(2, 3)]
    assert walk.segment_sums(np.asarray([True, False, True]), [2, 0, 1]).tolist() == [1, 0, 1]


def test_each_column_is_cut_by_what_it_has_values_for():
    pack = made_pack(2)  # two samples of 3 and 2 tokens; the first has two images
    first, second = walk.samples(pack)
    assert first["input_ids"] == [2000, 2001, 2002]
    assert second["labels"] == [-100, 2004]
    assert first["images"] == pack["images"]
    assert (second["images"], second["image_sizes"], second["image_num_tokens"]) == ([], [], [])
    assert [sample["sample_sources"] for sample in (first, second)] == ["a", "b"]
    assert "num_tokens" not in first


def test_columns_that_are_not_read_are_not_needed():
    pack = {name: made_pack(1)[name] for name in ("sample_ids", "sample_num_images", "images")}
    assert [(s["sample_ids"], len(s["images"])) for s in walk.samples(pack)] == [(-1, 1), (1, 0)]
    with pytest.raises(KeyError, match="sample_lengths"):
        list(walk.samples({"sample_ids": [1], "input_ids": [5]}))


def test_packs_are_made_again_of_their_samples():
    table = packs_table(0, 5).slice(1)

    def vision_cost(sizes):
        return 10 * len(sizes)

    packs = [units_of(pack, vision_cost) for pack in walk.packs(table)]
    assert assemble(packs).to_pylist() == table.to_pylist()
