"""Processor time and memory of a process and its descendants, from /proc."""

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """A process and all that it has started, directly or not, and that live."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:  # it has ended
                continue
    return found


def cpu_seconds(pid: int | None = None) -> float:
    """User and system time so far of a process and its descendants, those that have ended and been waited for too."""
    return sum(_ticks(p) for p in descendants(pid or os.getpid())) / TICKS


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime


def peak_worker_bytes(pid: int) -> int:
    """The largest peak of resident memory among the living Python workers of Spark below a process."""
    return max((_peak(p) for p in descendants(pid) if _is_worker(p)), default=0)


def _is_worker(pid: int) -> bool:
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
