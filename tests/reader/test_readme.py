"""What the README shows of the reader does what it says."""

import re
from pathlib import Path

import pytest

from packing_udfs import manifest
from packing_udfs.contract import MANIFEST_JSON, MANIFEST_PARQUET
from packing_udfs.encode import processor
from packing_udfs.encode.encoder import Encoder
from packing_udfs.parquet.write import write_shard
from packing_udfs.shard.pack_shard import PackSettings, pack_shard
from tests.reader.conftest import upload
from tests.unit.demo_samples import DEMO, as_spark_gives, demo_rows

ROOT = Path(__file__).parents[2]
SEQ_LEN = 2048


@pytest.fixture(scope="module")
def demo(hub, tmp_path_factory) -> int:
    """Some of the demo as user/demo-packed, packed without Spark; the number of packs."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "data/train").mkdir(parents=True)
    (folder / "manifest").mkdir()
    files = processor.fetch(str(DEMO / "processor"))
    packed = pack_shard(as_spark_gives(demo_rows()[:30]), Encoder(files.load()), PackSettings(seq_len=SEQ_LEN))
    name = "data/train/00000.parquet"
    rows = write_shard(str(folder / name), name, packed.row_groups())
    named = {"name": "jobs/demo/processor", "revision": None, "fingerprint": files.fingerprint}
    info, row_groups = manifest.dump({"seq_len": SEQ_LEN, "processor": named}, rows)
    (folder / MANIFEST_JSON.format(split="train")).write_bytes(info)
    (folder / MANIFEST_PARQUET.format(split="train")).write_bytes(row_groups)
    upload("user/demo-packed", folder)
    num_packs = sum(rows["num_rows"].to_pylist())
    assert num_packs >= 8, "two steps"
    return num_packs


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what forking workers is said to be
def test_the_readmes_loop_runs_and_its_checkpoint_goes_on(demo, monkeypatch):
    text = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text[text.index("## Train from the stream") :], re.DOTALL)
    monkeypatch.chdir(ROOT)
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    dataset, batch = names["dataset"], names["batch"]
    assert len(dataset) == 2 * dataset.num_steps == 2 * (demo // 4)
    assert len(dataset.dropped) == demo % 4
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, SEQ_LEN)
    assert {"labels", "position_ids", "cu_seqlens", "segment_ids", "pixel_values"} <= set(batch)
    assert names["num_label_tokens"] == (batch["labels"] != -100).sum() > 0
    assert (names["checkpoint"]["epoch"], names["checkpoint"]["step"]) == (0, dataset.num_steps)
    state = next(iter(dataset))["state"]
    dataset.load_state_dict(state)
    assert next(iter(dataset))["state"] == {**state, "step": 1, "lane": 0}
