"""Lines of `python -m tests.bench` on standard input, as a table in Markdown on standard output.

make bench BENCH=packing | .venv/bin/python -m tests.bench.table
"""

import json
import sys
from collections.abc import Iterable, Iterator

COLUMNS = ("bench", "metric", "input", "ours", "peer", "unit")


def table(lines: Iterable[str]) -> Iterator[str]:
    """Rows of the table; what is not a line of a bench, as what `make` says, is left out."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|" + "---|" * len(COLUMNS)
    for line in lines:
        if line.startswith("{"):
            figure = json.loads(line)
            peers = ", ".join(f"{name}: {value}" for name, value in (figure.get("peer") or {}).items())
            values = figure | {"peer": peers, "ours": figure.get("ours", f"not measured: {figure.get('skipped')}")}
            yield f"| {' | '.join(str(values.get(column, '')).replace('|', '/') for column in COLUMNS)} |"


if __name__ == "__main__":
    print("\n".join(table(sys.stdin)))
