"""What becomes of each row of a shard, and the counts that prove that nothing is lost.

Every row has one outcome: packed, quarantined with a reason, a duplicate, or not sampled. The ledger counts rows by
source, outcome and reason; ledgers of shards add up.
"""

import pyarrow as pa

from packing_udfs.contract import QUARANTINE_SCHEMA
from packing_udfs.encode.encoder import EncodeError
from packing_udfs.encode.over_length import Shortened
from packing_udfs.shard.rows import Rows

REPEATED = "repeated"  # the `reason` of rows that repeat one read before them; they are duplicates without their bytes
NOT_SAMPLED = "not_sampled"  # the `reason` of rows that a source's limit or weight leaves out; they are but counted

LEDGER_SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("outcome", pa.string()),  # packed, quarantined, duplicate, not_sampled
        ("reason", pa.string()),  # of a quarantine, else empty
        ("num_rows", pa.int64()),
        ("num_copies", pa.int64()),  # those of num_rows that are copies beyond the first of a row
        ("num_tokens", pa.int64()),  # of the rows that got as far as tokens, before anything was cut
        ("num_images", pa.int64()),
        ("num_images_reencoded", pa.int64()),  # those of num_images that were larger than images.max_side
        ("num_turns_dropped", pa.int64()),  # for their ratings
        ("num_turns_cut", pa.int64()),  # of packed rows that were too long (pack.over_length) …
        ("num_tokens_cut", pa.int64()),  # … and the tokens lost with them
    ]
)


class Outcomes:
    """A problem, a duplicate, not sampled, or (none of them) a place in a pack, for each row."""

    def __init__(self, rows: Rows):
        self.rows = rows
        self.problems: dict[int, EncodeError] = {}
        self.duplicates = {i for i, reason in enumerate(rows.reason) if reason == REPEATED}
        self.not_sampled = {i for i, reason in enumerate(rows.reason) if reason == NOT_SAMPLED}
        self.num_tokens: dict[int, int] = {}  # of rows that were encoded
        self.num_images_reencoded: dict[int, int] = {}  # of rows whose images are all sound
        self.cuts: dict[int, Shortened] = {}  # of rows that are packed in part

    def open(self) -> list[int]:
        """Rows that nothing has been said of yet."""
        closed = self.problems.keys() | self.duplicates | self.not_sampled
        return [i for i in range(len(self.rows)) if i not in closed]

    def quarantine(self) -> pa.Table:
        """The rows with a problem, as `contract.QUARANTINE_SCHEMA`."""
        rows = self.rows
        found = [
            {
                "reason": problem.reason,
                "detail": problem.detail,
                "source": rows.source[i],
                "file": rows.file[i],
                "row": rows.row[i],
                "copy": rows.copy[i],
                "sample_id": rows.sample_id[i],
                "num_tokens": self.num_tokens.get(i),
                "num_images": len(rows.images[i]),
            }
            for i, problem in sorted(self.problems.items())
        ]
        return pa.Table.from_pylist(found, schema=QUARANTINE_SCHEMA)

    def ledger(self) -> pa.Table:
        """Counts of rows by source, outcome and reason, as `LEDGER_SCHEMA`, sorted."""
        rows = self.rows
        counts: dict[tuple[str, str, str], list[int]] = {}
        for i in range(len(rows)):
            cut = self.cuts.get(i)
            row = (
                1,
                rows.copy[i] > 0,
                self.num_tokens.get(i, 0),
                len(rows.images[i]),
                self.num_images_reencoded.get(i, 0),
                rows.num_turns_dropped[i],
                cut.num_turns_cut if cut else 0,
                cut.num_tokens_cut if cut else 0,
            )
            total = counts.setdefault((rows.source[i], *self._outcome(i)), [0] * len(row))
            for at, count in enumerate(row):
                total[at] += count
        found = [dict(zip(LEDGER_SCHEMA.names, (*key, *counts[key]), strict=True)) for key in sorted(counts)]
        return pa.Table.from_pylist(found, schema=LEDGER_SCHEMA)

    def _outcome(self, i: int) -> tuple[str, str]:
        if i in self.problems:
            return "quarantined", self.problems[i].reason
        if i in self.duplicates:
            return "duplicate", ""
        return (NOT_SAMPLED if i in self.not_sampled else "packed"), ""
