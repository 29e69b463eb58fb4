"""What a node costs a Hub at the start: ranks are real processes of one torch.distributed job, and share HF_HOME."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from packing_udfs.reader import PackedDataset
from tests.reader.conftest import upload

RANKS = Path(__file__).with_name("ranks.py")


def start_ranks(hub, home, *, repo="owner/packed", revision=None, world_size=8, num_workers=4) -> list:
    root = RANKS.parents[2]
    env = {**os.environ, **hub.environment(), "HF_HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    store = str(home / f"store{len(os.listdir(home))}")
    options = {"repo": repo, "revision": revision, "world_size": world_size, "num_workers": num_workers, "store": store}
    command = [sys.executable, "-W", "ignore", str(RANKS), json.dumps(options)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return sorted(json.loads(line) for line in done.stdout.splitlines())


def startup_requests(hub) -> list[str]:
    """Requests that are not for row groups or footers."""
    return [record.path.rpartition("/")[2] for record in hub.requests if "/data/" not in record.path]


@pytest.mark.parametrize("by_commit", [False, True])
def test_eight_ranks_of_four_workers_start_with_two_requests(hub, tmp_path, by_commit):
    revision = HfApi().dataset_info("owner/packed").sha if by_commit else None
    hub.requests.clear()
    ranks = start_ranks(hub, tmp_path, revision=revision)
    assert startup_requests(hub) == ["train.json", "train.parquet"], "a node has three at most; a worker has none"
    assert len({pack for _, _, packs in ranks for pack in packs}) == 32, "a whole step of different packs"
    hub.requests.clear()
    start_ranks(hub, tmp_path, revision=revision, world_size=4, num_workers=0)
    assert startup_requests(hub) == ([] if by_commit else ["train.json"]), (
        "the branch may have moved; the files are here"
    )


def test_ranks_agree_on_a_commit_while_the_branch_moves(hub, hub_dataset, tmp_path):
    moving = shutil.copytree(hub_dataset, tmp_path / "moving")
    upload("owner/agreed", moving)
    before = json.loads((moving / "manifest/train.json").read_text())
    # The first rank's request waits until the branch has moved; without an agreement the others would not.
    fault = hub.inject(route="resolve", path="owner/agreed/resolve/main", delay=5)

    def move():
        while not fault.hits:
            time.sleep(0.05)
        changed = json.dumps({**before, "note": "another run"}).encode()
        HfApi().upload_file(
            repo_id="owner/agreed", repo_type="dataset", path_in_repo="manifest/train.json", path_or_fileobj=changed
        )

    mover = threading.Thread(target=move)
    mover.start()
    ranks = start_ranks(hub, tmp_path, repo="owner/agreed", num_workers=0)
    mover.join()
    assert len({fingerprint for _, fingerprint, _ in ranks}) == 1
    assert ranks[0][1] != PackedDataset(str(moving), global_batch_size=4).manifest.fingerprint, "it did move"
