"""How many bytes of an upload really went to the Hub: chunks that Xet already stores are not sent again.

Only `hf_xet` knows, and `huggingface_hub` does not pass its counts on. So while an upload is counted, the session that
huggingface_hub opens is wrapped, and its counts (`dedup_metrics`) are read when the upload is complete. Rejected:
progress bars (they end before the last chunk), and hf_xet alone (huggingface_hub chooses between Xet and LFS).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from huggingface_hub.utils import _xet

__all__ = ["Sent", "counted"]


@dataclass
class Sent:
    """Bytes of new chunks and of the lists of chunks, compressed as sent; None when nothing went through Xet."""

    num_bytes: int | None = None


class _Watched:
    """A session of hf_xet, or one of its uploads, whose counts go to `Sent` when the upload is complete."""

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
        metrics = self._watched.wait_to_finish().dedup_metrics  # leaving without an error does the same
        self._sent.num_bytes = metrics.total_bytes_uploaded
        return None


@contextmanager
def counted() -> Iterator[Sent]:
    """Count what the uploads inside it send. One at a time in a process."""
    sent, get_session = Sent(), getattr(_xet, "get_xet_session", None)
    if get_session is None:  # another release of huggingface_hub: uploads work, their bytes are not known
        yield sent
        return
    _xet.get_xet_session = lambda: _Watched(get_session(), sent)
    try:
        yield sent
    finally:
        _xet.get_xet_session = get_session
