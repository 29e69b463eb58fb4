"""How much of a file really went to the Hub: what Xet had already is not sent again.

Only `hf_xet` knows, and `huggingface_hub` asks it for nothing but hashes. So while an upload is counted, the session
that huggingface_hub opens is looked over its shoulder: its account (`dedup_metrics`) is read once the upload is
complete. Rejected: the difference of sizes (nobody knows what was there), progress bars (they end before the
last chunk), uploading through hf_xet alone (huggingface_hub chooses between Xet and LFS and makes the commit).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from huggingface_hub.utils import _xet


@dataclass
class Sent:
    """What an upload sent."""

    num_bytes: int | None = None
    """Bytes of new chunks and of the lists of all, compressed as they were sent; None when nothing went through Xet."""


class _Watched:
    """A session of hf_xet, or an upload of one, whose account goes to `Sent` when it is complete."""

    def __init__(self, watched: Any, sent: Sent):
        self._watched, self._sent = watched, sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watched, name)

    def new_upload_commit(self, **options: Any) -> "_Watched":
        return _Watched(self._watched.new_upload_commit(**options), self._sent)

    def __enter__(self) -> "_Watched":
        self._watched.__enter__()
        return self

    def __exit__(self, kind: Any, *error: Any) -> Any:
        if kind is not None:
            return self._watched.__exit__(kind, *error)
        metrics = self._watched.wait_to_finish().dedup_metrics  # what leaving without an error does
        self._sent.num_bytes = metrics.total_bytes_uploaded
        return None


@contextmanager
def counted() -> Iterator[Sent]:
    """Count what uploads inside it send. One at a time in a process."""
    sent, get_session = Sent(), getattr(_xet, "get_xet_session", None)
    if get_session is None:  # another release of huggingface_hub: nothing is known, and nothing else is wrong
        yield sent
        return
    _xet.get_xet_session = lambda: _Watched(get_session(), sent)
    try:
        yield sent
    finally:
        _xet.get_xet_session = get_session
