"""How much of a file really went to the Hub: what Xet had already is not sent again.

Only `hf_xet` knows, and `huggingface_hub` asks it for nothing but hashes. So while an upload is counted, the session
that huggingface_hub opens is looked over its shoulder: every file's own account (`dedup_metrics`) is added up once the
upload is complete. Rejected: the difference of sizes (nobody knows what was there), progress bars (they end before the
last chunk), uploading through hf_xet alone (huggingface_hub chooses between Xet and LFS and makes the commit).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from huggingface_hub.utils import _xet


@dataclass
class Sent:
    """What an upload sent."""

    _files: list[Any] = field(default_factory=list)

    @property
    def num_bytes(self) -> int | None:
        """Bytes of new chunks, as they were compressed and sent; None when nothing went through Xet."""
        metrics = [file.result().dedup_metrics for file in self._files]
        return sum(m.xorb_bytes_uploaded for m in metrics) if metrics else None


class _Watched:
    """An object of hf_xet with what it returns seen by `Sent`."""

    def __init__(self, watched: Any, sent: Sent):
        self._watched, self._sent = watched, sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watched, name)

    def new_upload_commit(self, **options: Any) -> "_Watched":
        self._sent._files.clear()  # of an attempt that failed
        return _Watched(self._watched.new_upload_commit(**options), self._sent)

    def start_upload_file(self, *args: Any, **options: Any) -> Any:
        handle = self._watched.start_upload_file(*args, **options)
        self._sent._files.append(handle)
        return handle

    def __enter__(self) -> "_Watched":
        self._watched.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._watched.__exit__(*error)


@contextmanager
def counted() -> Iterator[Sent]:
    """Count what uploads inside it send. One at a time in a process."""
    sent, get_session = Sent(), _xet.get_xet_session
    _xet.get_xet_session = lambda: _Watched(get_session(), sent)
    try:
        yield sent
    finally:
        _xet.get_xet_session = get_session
