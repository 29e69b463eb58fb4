"""Routes, what they are given (`Call`) and what they give back (`Answer`).

    @routes.add("GET", "/api/{kind}/{repo}/tree/{revision}/{path*}")
    def list_tree(call, repo, revision, path): ...

`{repo}` has one slash, `{name*}` any number, other names none (see SHAPES). They match the path as it was sent and are
then decoded, so `refs%2Fpr%2F1` is one revision. `repo` is given as a `Repo`, of the kind models without `{kind}`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from jobs.local_hub.backend import Backend
from jobs.local_hub.errors import HubError
from jobs.local_hub.store.repos import Repo

__all__ = ["Answer", "Call", "FilePart", "Headers", "Route", "Routes", "error_answer", "json_answer"]

MAX_JSON_BYTES = 1 << 30  # a commit of 100 regular files of 10 MiB in base64
SHAPES = {
    "kind": "datasets|models|spaces",
    "repo": "[^/]+/[^/]+",
    "num": r"\d+",
    "scope": "read|write",
    "version": "1|2",
}

Headers = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class FilePart:
    """The bytes [start, end) of a file, sent without passing through Python."""

    path: Path
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass
class Answer:
    """An HTTP answer; an iterable body needs `num_bytes`."""

    body: bytes | FilePart | Iterable[bytes | memoryview] = b""
    status: int = 200
    headers: Headers = ()
    num_bytes: int | None = None

    def length(self) -> int:
        """Bytes of the body."""
        if isinstance(self.body, Sized):
            return len(self.body)
        assert self.num_bytes is not None, "an iterable body needs num_bytes"
        return self.num_bytes


def json_answer(value: Any, status: int = 200, headers: Headers = ()) -> Answer:
    return Answer(json.dumps(value).encode(), status, [*headers, ("Content-Type", "application/json")])


def error_answer(error: HubError, headers: Headers = ()) -> Answer:
    """The answer to a refused request, as huggingface_hub's `hf_raise_for_status` reads it."""
    text = " ".join(str(error).split()).encode("ascii", "replace").decode()  # a header is one line of ASCII
    code = [("X-Error-Code", error.code)] if error.code else []
    return json_answer({"error": str(error)}, error.status, [*headers, ("X-Error-Message", text), *code])


@dataclass
class Call:
    """One request, as a route sees it."""

    hub: Backend
    headers: Message  # their names in any case
    path: str
    query: dict[str, str]
    pieces: Iterator[bytes | memoryview]  # the body
    base: str  # http://host:port
    _rest: bytearray = field(default_factory=bytearray)

    def body(self) -> bytes:
        """The whole body; HubError 413 above MAX_JSON_BYTES."""
        out = bytearray()
        for piece in self.pieces:
            out += piece
            if len(out) > MAX_JSON_BYTES:
                raise HubError(413, f"the body has more than {MAX_JSON_BYTES} bytes")
        return bytes(out)

    def json(self) -> dict[str, Any]:
        """The body, a JSON object; ValueError if it is not."""
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
    def bearer(self) -> str | None:
        """The token that the request carries."""
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        return token if kind == "Bearer" else None

    def check_access(self, access: str) -> None:
        """Refuse (HubError 401) a wrong token everywhere, and a missing one where `access` is "write"."""
        if self.bearer not in (None, self.hub.token):
            raise HubError(401, "Invalid credentials in Authorization header")
        if access == "write" and self.bearer is None:
            raise HubError(401, "Invalid username or password.")

    def repo(self, kind: str, repo_id: str) -> Repo:
        """A repository that the caller may read; else HubError RepoNotFound: 404, without a token 401."""
        repo, authorised = self.hub.repos.get(kind, repo_id), self.bearer == self.hub.token
        if repo is None or (repo.state.private and not authorised):
            raise HubError(404 if authorised else 401, "Repository not found", "RepoNotFound")
        return repo

    def span(self, size: int) -> tuple[int, int, int]:
        """The bytes [start, end) of a body of this size that the Range header asks for, and the answer's status.

        Several ranges, or another unit than bytes, ask for the whole body (RFC 9110, 14.2). HubError 416 for a range
        outside the body.
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

    def content(self, size: int, headers: Headers, part: Callable[[int, int], Any]) -> Answer:
        """The bytes that the Range header asks for; `part` gives the body of [start, end)."""
        start, end, status = self.span(size)
        ranged = [("Content-Range", f"bytes {start}-{end - 1}/{size}")] if status == 206 else []
        return Answer(part(start, end), status, [*headers, *ranged], end - start)


@dataclass(frozen=True)
class Route:
    """A method and a pattern of paths, with the function that answers; `access` as of `Routes.add`."""

    method: str
    pattern: re.Pattern[str]
    function: Callable[..., Answer]
    access: str

    def match(self, method: str, path: str) -> dict[str, str] | None:
        """The decoded parameters of a request, None if it is for another route; GET answers HEAD too."""
        found = self.pattern.fullmatch(path) if self.method == ("GET" if method == "HEAD" else method) else None
        return {name: unquote(value) for name, value in found.groupdict().items()} if found else None

    def answer(self, call: Call, parameters: dict[str, Any]) -> Answer:
        """Check the access, find the repository and call the function."""
        if self.access != "signed":
            call.check_access(self.access)
        if "repo" in parameters:
            repo = call.repo(parameters.pop("kind", "models"), parameters["repo"])
            parameters = {**parameters, "repo": repo}
        return self.function(call, **parameters)


class Routes(list[Route]):
    """The routes of a module."""

    def add(self, method: str, *templates: str, access: str = "read"):
        """Decorate a function that answers a method at these paths.

        Args:
            access: "read" takes no token or the right one; "write" needs it; the function checks "signed" itself.
        """

        def decorate(function: Callable[..., Answer]) -> Callable[..., Answer]:
            self.extend(Route(method, _pattern(template), function, access) for template in templates)
            return function

        return decorate


def _pattern(template: str) -> re.Pattern[str]:
    def group(match: re.Match) -> str:
        name, many = match.groups()
        return f"(?P<{name}>{'.+' if many else SHAPES.get(name, '[^/]+')})"

    return re.compile(re.sub(r"\{(\w+)(\*?)\}", group, template))
