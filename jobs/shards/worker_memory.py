"""What keeps Spark's Python workers small: a worker holds a shard three times, and all else should be little.

A worker lives for many tasks, some that read and some that pack, so what one leaves behind is there in the next.
Rejected: workers that live for one task (`spark.python.worker.reuse=false`), which load everything anew for each shard.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pyarrow as pa


@contextmanager
def torch_left_out() -> Iterator[None]:
    """While it lasts, transformers does not find torch, which it imports if it can: 250 MB and two seconds a worker.

    What the job calls of it needs no torch. Its processors use it with torchvision only: where that is installed, and
    where either has been imported before, nothing is done. For a process of Spark's, not for one that trains.
    """
    if "transformers" in sys.modules or "torch" in sys.modules or find_spec("torchvision"):
        yield
        return
    sys.modules["torch"] = None  # what makes an import fail
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that there is no torch
    try:
        yield
    finally:
        del sys.modules["torch"]


def give_back() -> None:
    """Return to the system what freed objects have left with Arrow's and the C library's allocators; some ms."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
