"""A record of each request, in memory and, where asked for, in a file of JSON lines."""

import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["RequestLog", "RequestRecord"]

MAX_RECORDS = 100_000
SETTLE_SECONDS = 1.0


@dataclass(frozen=True)
class RequestRecord:
    """One request and its answer."""

    method: str
    route: str  # name of the function that answered, "none" when no route matched
    status: int  # 0 when the connection ended before an answer
    bytes_in: int  # of the request's body
    bytes_out: int  # of the answer's body
    path: str  # with the query
    seconds: float
    range: str | None  # the Range header
    agent: str  # the User-Agent header


class RequestLog:
    """The newest MAX_RECORDS requests, oldest first: iterable, with a length.

    A client may have its answer just before the record is made. So every look at the log first waits for requests that
    are being answered, up to SETTLE_SECONDS.
    """

    def __init__(self, path: Path | None):
        self._records: deque[RequestRecord] = deque(maxlen=MAX_RECORDS)
        self._file = open(path, "a", buffering=1) if path else None  # noqa: SIM115 - `close` closes it
        self._changed = threading.Condition()
        self._open = 0

    def begin(self) -> None:
        with self._changed:
            self._open += 1

    def end(self, record: RequestRecord) -> None:
        line = json.dumps({"time": round(time.time(), 3), **asdict(record)}) + "\n" if self._file else ""
        with self._changed:
            self._open -= 1
            self._records.append(record)
            if self._file:
                self._file.write(line)
            self._changed.notify_all()

    def records(self) -> list[RequestRecord]:
        """A copy of the records."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open, SETTLE_SECONDS)
            return list(self._records)

    def clear(self) -> None:
        """Forget the records in memory."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open, SETTLE_SECONDS)
            self._records.clear()

    def close(self) -> None:
        if self._file:
            self._file.close()

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(self.records())

    def __len__(self) -> int:
        return len(self.records())
