"""What keeps Spark's Python workers small: a worker holds a shard three times, and everything else should be little.

A worker lives for many tasks, some that read and some that pack, so what one task leaves behind is there in the next.
Rejected: workers that live for one task (`spark.python.worker.reuse=false`), which load everything for each shard.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pyarrow as pa

__all__ = ["give_back", "torch_left_out"]


@contextmanager
def torch_left_out() -> Iterator[None]:
    """Hide torch from transformers, which imports it if it can: 250 MB and two seconds a worker.

    The job's calls need no torch. Processors use it only together with torchvision: where that is installed, and where
    torch or transformers was imported before, nothing is done. For a process of Spark's, not for one that trains.
    """
    if "transformers" in sys.modules or "torch" in sys.modules or find_spec("torchvision"):
        yield
        return
    modules: dict[str, Any] = sys.modules
    modules["torch"] = None  # makes an import fail
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would warn that there is no torch
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
