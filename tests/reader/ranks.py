"""The ranks of a torch.distributed job on one machine, each with its DataLoader workers, as a training script has them.

    python tests/reader/ranks.py '{"repo": …, "revision": …, "world_size": 8, "num_workers": 4, "store": FILE}'

Forks the ranks after one import of torch. Each opens the dataset, reads a step and prints a JSON line: [rank, the
manifest's fingerprint, numbers of the packs].
"""

import json
import os
import sys

import torch.distributed
from torch.utils.data import DataLoader

from packing_udfs.reader import PackedDataset


def run_rank(rank: int, *, repo: str, revision: str | None, world_size: int, num_workers: int, store: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world_size)
    dataset = PackedDataset(repo, revision=revision, global_batch_size=4 * world_size, micro_batch_size=1, decode=None)
    torch.distributed.barrier()
    loader = iter(DataLoader(dataset, batch_size=None, num_workers=num_workers))
    packs = [int(next(loader)["sample_ids"][0][0]) // 10 for _ in range(4)]
    line = json.dumps([rank, dataset.manifest.fingerprint, packs]) + "\n"
    os.write(1, line.encode())  # at once, so that lines of ranks do not mix
    torch.distributed.barrier()
    del loader
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    children = []
    for rank in range(options["world_size"]):
        if not (pid := os.fork()):
            run_rank(rank, **options)
            os._exit(0)
        children.append(pid)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
