"""The HTTP server on 127.0.0.1: connections, requests, answers.

It is the standard library's threading server, without a dependency. An asynchronous framework would add what the dozen
clients of one machine do not need. Connections are kept alive, a plain file goes out by sendfile, a Xet file by
scatter-gather writes of decoded chunks; hashing, LZ4, file and socket calls release the GIL. A small range takes well
under a millisecond. With a thread per connection, faults (delay, drip, reset) are a plain sleep or close.
"""

import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qsl

from .backend import Backend
from .errors import HubError
from .faults import ConnectionCutError, Fault
from .request_log import RequestRecord
from .routes import find
from .routes.routing import Answer, Call, FilePart, Route, error_answer

__all__ = ["HubServer"]

PIECE_BYTES = 1 << 20
MAX_BUFFERS = 512  # of one scatter-gather write; the system takes 1024
SMALL_BYTES = 256 << 10  # a smaller file is read and sent together with its headers


class HubServer(ThreadingTCPServer):
    """Listens at the backend's port and answers from it, with a thread per connection."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, backend: Backend):
        self.backend = backend
        self.connections: dict[socket.socket, threading.Thread] = {}
        super().__init__(("127.0.0.1", backend.port), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        arguments = (request, client_address)
        thread = threading.Thread(target=self.process_request_thread, args=arguments, daemon=True)
        self.connections[request] = thread
        thread.start()

    def shutdown_request(self, request: Any) -> None:
        self.connections.pop(request, None)
        super().shutdown_request(request)

    def end_connections(self) -> None:
        """Break the kept-alive connections and wait for their threads."""
        for connection, thread in list(self.connections.items()):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=5)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HubServer

    def log_message(self, format, *args) -> None:
        """Nothing: `respond` keeps the request log."""

    def respond(self) -> None:
        """Answer one request and record it."""
        hub, started = self.server.backend, time.perf_counter()
        self.num_in = self.num_out = self.status = 0
        path, _, query = self.path.partition("?")
        found = find(self.command, path)
        name = found[0].function.__name__ if found else "none"
        hub.requests.begin()
        try:
            fault = hub.faults.hit(name, self.command, self.path)
            pieces = iter(fault.upload(self._body()) if fault else self._body())
            if fault:
                fault.begin()
            host = self.headers.get("Host")
            base, values = f"http://{host}" if host else self.server.url, dict(parse_qsl(query, keep_blank_values=True))
            answer = self._answer(Call(hub, self.headers, path, values, pieces, base), found, fault)
            for _ in pieces:  # bytes that nobody read would be taken for the next request
                pass
            if fault:
                fault.end()
            self._send(answer, fault)
        except ConnectionCutError:
            # Closing with a linger time of 0 sends RST instead of FIN.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        except ConnectionError:
            self.close_connection = True
        finally:
            seconds = round(time.perf_counter() - started, 6)
            span, agent = self.headers.get("Range"), self.headers.get("User-Agent", "")
            sizes = self.status, self.num_in, self.num_out
            hub.requests.end(RequestRecord(self.command, name, *sizes, self.path, seconds, span, agent))

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = respond  # noqa: N815

    def _answer(self, call: Call, found: tuple[Route, dict[str, str]] | None, fault: Fault | None) -> Answer:
        if fault and fault.status:
            return error_answer(HubError(fault.status, "injected fault"), fault.headers.items())
        try:
            if found is None:
                raise HubError(404, f"this Hub has no route for {self.command} {call.path}")
            route, parameters = found
            return route.answer(call, parameters)
        except HubError as error:
            return error_answer(error)
        except ValueError as error:  # not the number, JSON, base64 or hash that was expected
            return error_answer(HubError(400, f"malformed request: {error}"))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return error_answer(HubError(507, f"the store is full: {error.strerror}"))

    def _body(self) -> Iterator[bytes]:
        """The request's body in pieces of at most PIECE_BYTES."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self._line().split(b";")[0], 16):
                yield from self._exactly(size)
                self._line()
            while self._line().strip():  # trailers
                pass
        else:
            yield from self._exactly(int(self.headers.get("Content-Length") or 0))

    def _line(self) -> bytes:
        line = self.rfile.readline(1024)
        if not line.endswith(b"\n"):
            raise ConnectionAbortedError("the body ended in a chunk header")
        return line

    def _exactly(self, size: int) -> Iterator[bytes]:
        while size:
            piece = self.rfile.read(min(size, PIECE_BYTES))
            if not piece:
                raise ConnectionAbortedError("the body was cut short")
            size -= len(piece)
            self.num_in += len(piece)
            yield piece

    def _send(self, answer: Answer, fault: Fault | None) -> None:
        length = answer.length()
        self.status = answer.status
        lines = [f"HTTP/1.1 {answer.status} {self.responses.get(answer.status, ('Unknown',))[0]}"]
        lines += [f"{name}: {value}" for name, value in answer.headers]
        lines.append(f"Content-Length: {length}")
        if self.close_connection:
            lines.append("Connection: close")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        if self.command == "HEAD" or not length:
            self.connection.sendall(head)
        elif fault:
            self.connection.sendall(head)
            for piece in fault.answer(_pieces(answer.body)):
                self._write([piece])
        elif isinstance(answer.body, FilePart) and length > SMALL_BYTES:
            self._send_file(head, answer.body)
        else:
            self._send_pieces(head, _pieces(answer.body))

    def _send_pieces(self, head: bytes, pieces: Iterable[bytes | memoryview]) -> None:
        batch: list[bytes | memoryview] = [head]
        size = 0
        self.num_out -= len(head)
        for piece in pieces:
            batch.append(piece)
            size += len(piece)
            if size >= PIECE_BYTES or len(batch) == MAX_BUFFERS:
                self._write(batch)
                batch, size = [], 0
        self._write(batch)

    def _write(self, buffers: list[bytes | memoryview]) -> None:
        """Send buffers in one system call, or as many as it takes."""
        views = [memoryview(b) for b in buffers if len(b)]
        while views:
            sent = self.connection.sendmsg(views)
            self.num_out += sent
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    def _send_file(self, head: bytes, part: FilePart) -> None:
        self.connection.sendall(head)
        with open(part.path, "rb", buffering=0) as file:
            start = part.start
            while start < part.end:
                sent = os.sendfile(self.connection.fileno(), file.fileno(), start, part.end - start)
                assert sent, f"{part.path} is shorter than {part.end} bytes"
                start += sent
                self.num_out += sent


def _pieces(body: bytes | FilePart | Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """A body as pieces of bytes."""
    if isinstance(body, bytes):
        yield body
    elif isinstance(body, FilePart):
        with open(body.path, "rb", buffering=0) as file:
            for start in range(body.start, body.end, PIECE_BYTES):
                yield os.pread(file.fileno(), min(PIECE_BYTES, body.end - start), start)
    else:
        yield from body
