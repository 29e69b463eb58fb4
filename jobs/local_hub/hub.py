"""`LocalHub`: one folder, its store, and the server in front of it."""

import hashlib
import hmac
import threading
from contextlib import ExitStack
from pathlib import Path

from .blobs import Blobs
from .cas import Cas
from .disk import Disk
from .faults import Fault, Faults
from .repos import Repos
from .request_log import RequestLog
from .server import HubServer

DEFAULT_TOKEN = "hf_local"
PORT = 8765  # of `make hub`
POLL_SECONDS = 0.05  # how long `stop` may take to be noticed


class LocalHub:
    """A Hugging Face Hub for one machine, in one folder.

        with LocalHub(root) as hub:
            api = HfApi(endpoint=hub.url, token=hub.token)
            subprocess.run(..., env={**os.environ, **hub.environment()})

    Args:
        root: the folder that holds everything; made if missing, one Hub at a time.
        port: 0 takes a free one.
        xet: answer Xet requests; without it clients need HF_HUB_DISABLE_XET=1, as `environment()` says.
        token: what writes, and reads of private repositories, must carry.
        page_size: entries of one page of a listing.
        log_path: a file to append a JSON line per request to.
        cdn: lead requests for large files on to signed addresses, until `expire_addresses`, as huggingface.co does.

    Raises:
        ValueError: another Hub serves this root (from `start`, which also raises OSError for a port in use).
    """

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

    def start(self) -> "LocalHub":
        """Open the root and serve it from threads of this process."""
        with ExitStack() as undo:
            self.disk = Disk(self.root)
            undo.callback(self.disk.close)
            self.blobs = Blobs(self.disk)
            self.cas = Cas(self.disk)
            self.repos = Repos(self.disk)
            self._server = HubServer(self, self.port)
            undo.callback(self._server.server_close)
            self.requests = RequestLog(self.log_path)
            undo.pop_all()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_SECONDS,), daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving, end open connections and let go of the root."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server.end_connections()
        self.requests.close()
        self.disk.close()

    def wait(self) -> None:
        """Serve until the process is interrupted."""
        self._thread.join()

    def __enter__(self) -> "LocalHub":
        return self.start()

    def __exit__(self, *exception) -> None:
        self.stop()

    def inject(self, **fault) -> Fault:
        """Make requests fail: see `faults.Fault` for the arguments and for what is returned."""
        return self.faults.add(Fault(**fault))

    def environment(self) -> dict[str, str]:
        """The environment variables that a client process needs to use this Hub and nothing else.

        Set them before the client imports huggingface_hub, and before a JVM starts. HF_HOME is inside the root,
        so that wiping the root wipes what the client remembers of it.
        """
        out = {
            "HF_ENDPOINT": self.url,
            "HF_TOKEN": self.token,
            "HF_HOME": str(self.root / "home"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        }
        return out if self.xet else {**out, "HF_HUB_DISABLE_XET": "1"}

    def sign(self, *parts: str) -> str:
        """A signature of a capability that this Hub hands out and later takes back, in a URL or a token."""
        return hmac.new(self.token.encode(), "\0".join(parts).encode(), hashlib.sha256).hexdigest()[:32]

    def cdn_signature(self, oid: str) -> str:
        """What is signed about the address of a stored file."""
        return self.sign("cdn", oid, str(self._num_expired))

    def expire_addresses(self) -> None:
        """The CDN refuses every address that was handed out before."""
        self._num_expired += 1

    def lfs_size(self, sha256: str) -> int | None:
        """Bytes of an LFS object, whichever way it was uploaded, or None."""
        name = self.cas.by_sha256.get(sha256)
        return self.blobs.size(sha256) if name is None else self.cas.files[name].size
