"""`LocalHub`: a backend with the server in front of it."""

import threading
from contextlib import ExitStack

from .backend import Backend
from .request_log import RequestLog
from .server import HubServer

__all__ = ["PORT", "LocalHub"]

PORT = 8765  # of `make hub`
POLL_SECONDS = 0.05  # how long `stop` may take to be noticed


class LocalHub(Backend):
    """A Hugging Face Hub for one machine, in one folder.

        with LocalHub(root) as hub:
            api = HfApi(endpoint=hub.url, token=hub.token)
            subprocess.run(..., env={**os.environ, **hub.environment()})

    Args:
        root: the folder that holds everything; made if missing, for one Hub at a time.
        port: 0 takes a free one.
        xet: answer Xet requests; without it clients need HF_HUB_DISABLE_XET=1, as `environment()` says.
        token: what writes, and reads of private repositories, must carry.
        page_size: entries of one page of a listing.
        log_path: a file to append a JSON line per request to.
        cdn: redirect requests for LFS files to signed addresses, until `expire_addresses`, as huggingface.co does.
    """

    def start(self) -> "LocalHub":
        """Open the root and serve it from threads of this process.

        Raises:
            ValueError: another Hub serves this root.
            OSError: the port is in use.
        """
        self.open()
        with ExitStack() as undo:
            undo.callback(self.disk.close)
            self.requests = RequestLog(self.log_path)
            undo.callback(self.requests.close)
            self._server = HubServer(self)
            undo.pop_all()
        self.url = self._server.url
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_SECONDS,), daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving, end open connections and release the root."""
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

    def environment(self) -> dict[str, str]:
        """The environment variables that make a client process use this Hub and nothing else.

        Set them before the client imports huggingface_hub and before a JVM starts. HF_HOME is inside the root, so
        deleting the root also deletes what its clients cached.
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
