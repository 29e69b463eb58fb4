"""What the server and the routes answer from: a Hub's stores, settings and signatures."""

import hashlib
import hmac
from pathlib import Path

from .store.blobs import Blobs
from .store.disk import Disk
from .store.repos import Repos
from .store.xet_store import XetStore

__all__ = ["Backend"]


class Backend:
    """A Hub without its HTTP server; `open` opens the root and `disk.close` releases it. Arguments as of `LocalHub`."""

    def __init__(self, root: str | Path, *, xet: bool, token: str, page_size: int, cdn: bool):
        self.root = Path(root).absolute()
        self.xet = xet
        self.token = token
        self.page_size = page_size
        self.cdn = cdn
        self._num_expired = 0

    def open(self) -> None:
        """Open the stores.

        Raises:
            ValueError: another Hub serves this root.
        """
        self.disk = Disk(self.root)
        self.blobs = Blobs(self.disk)
        self.cas = XetStore(self.disk)
        self.repos = Repos(self.disk)

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
