"""Routes, and what a route is given and gives back.

    @route("GET", "/api/{kind}/{repo}/tree/{revision}", "/api/{kind}/{repo}/tree/{revision}/{path*}")
    def list_tree(call, kind, repo, revision, path=""): ...

`{kind}` is datasets, models or spaces, `{repo}` has one slash, `{name*}` any number, any other `{name}` none; they
match the path as it was sent and reach the function decoded, so `refs%2Fpr%2F1` is one revision.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from .errors import HubError
from .repos import Repo

if TYPE_CHECKING:
    from .hub import LocalHub

MAX_JSON_BYTES = 1 << 30  # a commit of 100 regular files of 10 MiB in base64

Headers = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class FilePart:
    """The bytes [start, end) of a file, sent without passing through Python."""

    path: Path
    start: int
    end: int


@dataclass
class Answer:
    """An HTTP answer; `num_bytes` is needed when the body is an iterable."""

    body: bytes | FilePart | Iterable[bytes | memoryview] = b""
    status: int = 200
    headers: Headers = ()
    num_bytes: int | None = None

    def length(self) -> int:
        """Bytes of the body."""
        if isinstance(self.body, bytes):
            return len(self.body)
        if isinstance(self.body, FilePart):
            return self.body.end - self.body.start
        assert self.num_bytes is not None, "an iterable body needs num_bytes"
        return self.num_bytes


def json_answer(value: Any, status: int = 200, headers: Headers = ()) -> Answer:
    """An answer with a JSON body."""
    return Answer(json.dumps(value).encode(), status, [*headers, ("Content-Type", "application/json")])


def error_answer(error: HubError, headers: Headers = ()) -> Answer:
    """The answer to a refused request, as huggingface_hub's `hf_raise_for_status` reads it."""
    text = " ".join(str(error).split()).encode("ascii", "replace").decode()  # a header is one line of ASCII
    out = [*headers, ("X-Error-Message", text)]
    if error.code:
        out.append(("X-Error-Code", error.code))
    return json_answer({"error": str(error)}, error.status, out)


@dataclass
class Call:
    """One request, as a route sees it."""

    hub: "LocalHub"
    headers: Any  # email.message.Message: case-insensitive get
    path: str
    query_text: str
    pieces: Iterator[bytes]  # the body
    bearer: str | None = None
    base: str = ""  # http://host:port
    _rest: bytearray = field(default_factory=bytearray)

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.query_text, keep_blank_values=True))

    def body(self) -> bytes:
        """The whole body, for what is known to be small.

        Raises:
            HubError: 413.
        """
        out = bytearray()
        for piece in self.pieces:
            out += piece
            if len(out) > MAX_JSON_BYTES:
                raise HubError(413, f"the body has more than {MAX_JSON_BYTES} bytes")
        return bytes(out)

    def json(self) -> Any:
        """The body, an object in JSON.

        Raises:
            ValueError: it isn't, which is answered by 400.
        """
        value = json.loads(self.body() or b"{}")
        if not isinstance(value, dict):
            raise HubError(400, "the body is not a JSON object")
        return value

    def read(self, size: int) -> bytes:
        """The next bytes of the body, fewer at its end."""
        while len(self._rest) < size and (piece := next(self.pieces, None)) is not None:
            self._rest += piece
        out = bytes(self._rest[:size])
        del self._rest[:size]
        return out

    @property
    def authorised(self) -> bool:
        return self.bearer == self.hub.token

    def repo(self, kind: str, repo_id: str) -> Repo:
        """A repository that the caller may read.

        Raises:
            HubError: RepoNotFound, 404; 401 without a token, when it may be a private one.
        """
        repo = self.hub.repos.get(kind, repo_id)
        if repo is None or (repo.state["private"] and not self.authorised):
            raise HubError(404 if self.authorised else 401, "Repository not found", "RepoNotFound")
        return repo

    def span(self, size: int) -> tuple[int, int, int]:
        """The bytes [start, end) of a body of this size that the Range header asks for, and the status.

        Several ranges, or anything that isn't a byte range, ask for the whole body (RFC 9110, 14.2).

        Raises:
            HubError: 416.
        """
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if not match or match.groups() == ("", ""):
            return 0, size, 200
        first, last = match.groups()
        if first:
            start, end = int(first), min(size, int(last) + 1) if last else size
        else:
            start, end = max(0, size - int(last)), size
        if start >= end:
            raise HubError(416, f"range {match[0]} is not in a body of {size} bytes")
        return start, end, 206


@dataclass(frozen=True)
class Route:
    """One way to call a function; `access` is who may (see `route`)."""

    method: str
    pattern: re.Pattern
    function: Callable[..., Answer]
    access: str


ROUTES: list[Route] = []


def _pattern(template: str) -> re.Pattern:
    def group(match: re.Match) -> str:
        name = match[1]
        if name == "kind":
            return "(?P<kind>datasets|models|spaces)"
        if name == "repo":
            return "(?P<repo>[^/]+/[^/]+)"
        if name.endswith("*"):
            return f"(?P<{name[:-1]}>.+)"
        return f"(?P<{name}>[^/]+)"

    return re.compile(re.sub(r"\{(\w+\*?)\}", group, template))


def route(method: str, *templates: str, access: str = "read"):
    """Register a function for a method and paths.

    Args:
        access: "read" takes no token or the right one; "write" needs it; "signed" checks for itself.
    """

    def add(function: Callable[..., Answer]) -> Callable[..., Answer]:
        for template in templates:
            ROUTES.append(Route(method, _pattern(template), function, access))
        return function

    return add


def find(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The route for a request and its decoded parameters; HEAD is answered by GET's."""
    method = "GET" if method == "HEAD" else method
    for candidate in ROUTES:
        if candidate.method == method and (match := candidate.pattern.fullmatch(path)):
            return candidate, {name: unquote(value) for name, value in match.groupdict().items()}
    return None
