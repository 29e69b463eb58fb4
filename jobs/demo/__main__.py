"""The whole way on one machine: an embedded Hub, the demo source, the main job, one batch in PyTorch.

    python -m jobs.demo [FOLDER]       FOLDER keeps the Hub; .local_hub when absent

It calls the main job and the reader as any user does; only the Hub is local. Exits non-zero on any failure.
"""

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from jobs.command import fail, new_parser
from jobs.demo.start import JOB, PACKED, PROCESSOR, ROOT, start_spark
from jobs.local_hub import PORT, LocalHub

__all__ = ["NEXT", "main", "run", "show_batch"]

NEXT = f"""
next, on the Hub of this run, which has stopped: `make hub` in another terminal serves it (and is stopped there before
the next `make run`); paste here the lines that it prints. In a browser, report.html is the page of what was packed:
  http://127.0.0.1:{PORT}/datasets/{PACKED}
  .venv/bin/python -m jobs.report {PACKED}                    # the same page, as ./report.html
  .venv/bin/python -m jobs.inspect {PACKED} --pack 17 --processor jobs/demo/processor --out pack.html
  .venv/bin/python -m jobs.validate {PACKED}
  .venv/bin/python -c "from datasets import load_dataset; row = next(iter(load_dataset('{PACKED}', split='train', \\
streaming=True))); print({{name: len(v) if isinstance(v, list) else v for name, v in row.items()}})"
or, with no Hub to start: make compare"""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = new_parser("demo", "Pack the demo on an embedded Hub and stream one batch of it.")
    parser.add_argument(
        "folder", nargs="?", default=ROOT / ".local_hub", help="where the Hub is kept (default: .local_hub)"
    )
    folder = parser.parse_args(argv).folder
    try:
        hub = _start_hub(folder)
    except ValueError as error:  # another process serves the folder's Hub
        return fail(error)
    try:
        return run(hub)
    finally:
        hub.stop()


def _start_hub(folder: str | Path) -> LocalHub:
    """At the port of `make hub`, so that the addresses printed now are right then; at any when that one is taken."""
    try:
        return LocalHub(folder, port=PORT).start()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return LocalHub(folder).start()


def run(hub: LocalHub) -> int:
    """The demo against a Hub that is served; returns the exit code."""
    os.environ |= hub.environment()  # before huggingface_hub is imported and before the JVM starts
    from jobs import pack

    print(f"hub          {hub.url}, kept in {hub.root}")
    spark = start_spark()
    code = pack.main([*JOB])
    if code:
        return code
    show_batch()
    print(NEXT)
    spark.stop()
    return 0


def show_batch() -> None:
    """One batch from the reader, by the shapes of its tensors."""
    import torch
    from torch.utils.data import DataLoader

    from packing_udfs.reader import PackedDataset

    dataset = PackedDataset(PACKED, global_batch_size=4, processor=PROCESSOR)
    batch = next(iter(DataLoader(dataset, batch_size=None)))
    print(f"batch        1 of {len(dataset)}, {len(dataset.dropped)} packs left over")
    for name, value in batch.items():
        if isinstance(value, torch.Tensor):
            print(f"  {name:<21}{str(value.dtype).removeprefix('torch.'):<9}{tuple(value.shape)}")


if __name__ == "__main__":
    sys.exit(main())
