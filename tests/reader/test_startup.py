"""What a node costs a Hub at the start: ranks are real processes of one torch.distributed job, and share HF_HOME."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest
from conftest import upload
from huggingface_hub import HfApi

from packing_udfs.reader import PackedDataset

# Forks ranks after one import of torch. Each opens the dataset as a training script does, reads a step through its
# DataLoader workers, and prints what it saw.
RANKS = """
import json, os, sys
import torch.distributed
from torch.utils.data import DataLoader
from packing_udfs.reader import PackedDataset

repo, revision, world_size, num_workers, store = json.loads(sys.argv[1])
children = []
for rank in range(world_size):
    if not (pid := os.fork()):
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world_size)
        dataset = PackedDataset(repo, revision=revision, global_batch_size=32, micro_batch_size=1, decode=None)
        torch.distributed.barrier()
        loader = iter(DataLoader(dataset, batch_size=None, num_workers=num_workers))
        packs = [int(next(loader)["sample_ids"][0][0]) // 10 for _ in range(4)]
        os.write(1, json.dumps([rank, dataset.manifest.fingerprint, packs]).encode() + b"\\n")  # whole lines
        torch.distributed.barrier()
        del loader
        torch.distributed.destroy_process_group()
        os._exit(0)
    children.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
"""


def start_ranks(hub, home, *, repo="owner/packed", revision=None, world_size=8, num_workers=4) -> list:
    env = {**os.environ, **hub.environment(), "HF_HOME": str(home), "OMP_NUM_THREADS": "1"}
    arguments = json.dumps([repo, revision, world_size, num_workers, str(home / f"store{len(os.listdir(home))}")])
    command = [sys.executable, "-W", "ignore", "-c", RANKS, arguments]
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
