"""What the server and the routes answer from: a Hub's stores, settings and signatures."""

import hashlib
import hmac
from pathlib import Path

from .faults import Fault, Faults
from .request_log import RequestLog
from .store.blobs import Blobs
from .store.disk import Disk
from .store.repos import Repos
from .store.xet_store import XetStore

__all__ = ["DEFAULT_TOKEN", "Backend"]

DEFAULT_TOKEN = "hf_local"


class Backend:
    """A Hub without its HTTP server; the arguments are those of `LocalHub`."""

    requests: RequestLog  # from `LocalHub.start`

    def __init__(
        self,
        root: str | Path,
        *,
        port: int = 0,
        xet: bool = True,
        token: str = DEFAULT_TOKEN,
        page_size: int = 1000,
        log_path: str | Path | None = None,
        cdn: bool = False,
    ):
        self.root = Path(root).absolute()
        self.port = port
        self.xet = xet
        self.token = token
        self.page_size = page_size
        self.log_path = Path(log_path) if log_path else None
        self.cdn = cdn
        self._num_expired = 0
        self.faults = Faults()

    def open(self) -> None:
        """Open the root; ValueError if another Hub serves it."""
        self.disk = Disk(self.root)
        self.blobs = Blobs(self.disk)
        self.cas = XetStore(self.disk)
        self.repos = Repos(self.disk)

    def inject(self, **fault) -> Fault:
        """Make requests fail: see `Fault` for the arguments and the result."""
        return self.faults.add(Fault(**fault))

    def sign(self, *parts: str) -> str:
        """A signature for a URL or a token that this Hub hands out."""
        return hmac.new(self.token.encode(), "\0".join(parts).encode(), hashlib.sha256).hexdigest()[:32]

    def is_signed(self, signature: str, *parts: str) -> bool:
        """Whether `sign` gave this signature for these parts."""
        return hmac.compare_digest(self.sign(*parts).encode(), signature.encode())

    def cdn_parts(self, oid: str) -> tuple[str, ...]:
        """What is signed about the CDN's address of a stored file."""
        return "cdn", oid, str(self._num_expired)

    def expire_addresses(self) -> None:
        """Make the CDN refuse every address that was handed out so far."""
        self._num_expired += 1

    def lfs_size(self, sha256: str) -> int | None:
        """Bytes of an LFS object, uploaded by LFS or by Xet, or None."""
        name = self.cas.by_sha256.get(sha256)
        return self.blobs.size(sha256) if name is None else self.cas.files[name].size
