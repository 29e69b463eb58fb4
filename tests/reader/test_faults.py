"""Whatever a Hub does to its answers, every row that is read is the row that was stored."""

import hashlib
import random
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader

from jobs.local_hub.routes.routing import Call
from packing_udfs.reader import PackedDataset
from packing_udfs.storage.byte_source import Stop
from packing_udfs.storage.hub import open_source

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _fresh(hub):
    hub.requests.clear()
    yield
    hub.faults.clear()


def rows(name, *, num_workers=0, epoch=0) -> list[str]:
    """A hash of each pack of an epoch, in order: its tokens, its place and the bytes of its images."""
    dataset = PackedDataset(name, global_batch_size=4, micro_batch_size=1, decode="bytes", retry_seconds=60)
    dataset.set_epoch(epoch)
    out = []
    for batch in DataLoader(dataset, batch_size=None, num_workers=num_workers):
        digest = hashlib.sha256(repr((batch["sample_ids"], batch["sample_sources"])).encode())
        tensors = (value for value in batch.values() if isinstance(value, torch.Tensor))
        for part in (*(tensor.numpy().tobytes() for tensor in tensors), *batch["images"][0]):
            digest.update(part)
        out.append(digest.hexdigest())
    return out


def draw_faults(draw: random.Random) -> list[dict]:
    """Of each kind some, on random requests for data."""
    kinds = [
        {"cut_answer": draw.randrange(1, 300_000)},  # a reset in the middle of a range
        {"cut_answer": draw.randrange(1, 200)},
        {"status": 429, "headers": {"Retry-After": "1"}},
        {"status": 503},
        {"status": 500},
        {"reset": "before"},
        {"reset": "after"},
        {"delay": draw.random()},
        {"drip": (20_000, 0.01)},
    ]
    draw.shuffle(kinds)
    return [{**kind, "skip": draw.randrange(6), "times": draw.randrange(1, 3)} for kind in kinds]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_faults_change_no_row(hub, hub_dataset, num_workers):
    faults = [hub.inject(route="resolve", path="/data/", **fault) for fault in draw_faults(random.Random(num_workers))]
    assert rows("owner/packed", num_workers=num_workers) == rows(str(hub_dataset))
    assert sum(fault.hits > 0 for fault in faults) >= 4


@pytest.mark.slow
def test_a_storm_of_faults_changes_no_row(hub, hub_dataset):
    hits = 0
    for epoch in range(12):
        hub.faults.clear()
        faults = [hub.inject(route="resolve", path="/data/", **fault) for fault in draw_faults(random.Random(epoch))]
        found = rows("owner/packed", num_workers=epoch % 3, epoch=epoch)
        assert found == rows(str(hub_dataset), epoch=epoch)
        hits += sum(fault.hits for fault in faults)
    assert hits > 60


def outage(hub, seconds: float) -> None:
    """All requests for data fail from the third on, for a time."""
    fault = hub.inject(route="resolve", path="/data/", skip=2, status=503, times=None)

    def end():
        while not fault.hits:
            time.sleep(0.01)
        time.sleep(seconds)
        hub.faults.clear()

    threading.Thread(target=end).start()


@pytest.mark.parametrize("seconds", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_an_outage_changes_no_row(hub, hub_dataset, seconds):
    expected = rows(str(hub_dataset))
    outage(hub, seconds)
    start = time.monotonic()
    assert rows("owner/packed", num_workers=2) == expected
    assert time.monotonic() - start > seconds, "it was waited for"


def test_a_body_that_ends_early_is_asked_for_the_rest(hub, hub_dataset, monkeypatch):
    """A server that promises fewer bytes than it was asked for, and no error."""
    monkeypatch.setattr(Stop, "sleep", lambda self, seconds: None)
    source = open_source("owner/packed", retry_seconds=1)
    source.read_file("manifest/train.json")
    real, asked = Call.span, []

    def at_most_forty(call, size):
        start, end, status = real(call, size)
        asked.append((start, end))
        return start, min(end, start + 40), status

    monkeypatch.setattr(Call, "span", at_most_forty)
    data = source.read("data/train/00000.parquet", 5, 90, Stop())
    assert bytes(data) == (hub_dataset / "data/train/00000.parquet").read_bytes()[5:95]
    assert asked == [(5, 95), (45, 95), (85, 95)]
