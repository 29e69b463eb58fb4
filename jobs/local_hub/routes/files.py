"""Contents of files: read by path, upload by LFS.

An LFS upload is "basic": one PUT of the whole body, of any size, to a signed address. Multipart is left out: a server
may offer it, clients never ask for it.
"""

import mimetypes
from collections.abc import Iterator

from jobs.local_hub.errors import HubError
from jobs.local_hub.store.repos import Repo

from .routing import Answer, Call, FilePart, Headers, Routes, error_answer, json_answer

__all__ = ["routes"]

routes = Routes()


@routes.add("GET", "/{kind}/{repo}/resolve/{revision}/{path*}", "/{repo}/resolve/{revision}/{path*}")
def resolve(call: Call, repo: Repo, revision: str, path: str) -> Answer:
    """A file's bytes or a range of them, wherever they are stored, with the headers that clients cache by."""
    hub, commit = call.hub, repo.commit(revision)
    headers = [("X-Repo-Commit", commit.oid)]
    entry = commit.files.get(path)
    if entry is None:  # the header lets clients remember that this commit does not have the file
        return error_answer(HubError(404, f"Entry not found: {path}", "EntryNotFound"), headers)
    oid = entry.content
    headers += [("ETag", f'"{oid}"'), ("Accept-Ranges", "bytes"), *_content_type(call, path)]
    if entry.lfs:
        headers += [("X-Linked-Etag", f'"{oid}"'), ("X-Linked-Size", str(entry.size))]
    xet_hash = hub.cas.by_sha256.get(oid)
    if xet_hash and hub.xet:
        token = f"{call.base}/api/{repo.kind}/{repo.id}/xet-read-token/{commit.oid}"
        headers += [("X-Xet-Hash", xet_hash), ("Link", f'<{token}>; rel="xet-auth"')]
    if hub.cdn and entry.lfs:
        host = call.base.replace("127.0.0.1", "localhost")
        headers.append(("Location", f"{host}/cdn/{oid}/{hub.sign(*hub.cdn_parts(oid))}"))
        return Answer(status=302, headers=headers)
    return _content(call, oid, entry.size, headers)


def _content_type(call: Call, path: str) -> Headers:
    """Browsers show pages and images and run nothing inside them; for other clients each file is bytes."""
    kind, encoding = mimetypes.guess_type(path)
    kind = kind or ""
    if encoding or not kind.startswith(("text/html", "image/")) or "text/html" not in call.headers.get("Accept", ""):
        return [("Content-Type", "application/octet-stream")]
    charset = "; charset=utf-8" if kind == "text/html" else ""
    return [("Content-Type", kind + charset), ("Content-Security-Policy", "sandbox")]


@routes.add("GET", "/cdn/{oid}/{signature}", access="signed")
def cdn(call: Call, oid: str, signature: str) -> Answer:
    """A stored file's bytes or a range of them, at a signed address and without a token."""
    if call.bearer is not None:
        raise HubError(400, "only one way of authentication is allowed")
    size = call.hub.lfs_size(oid)
    if size is None or not call.hub.is_signed(signature, *call.hub.cdn_parts(oid)):
        raise HubError(403, "the address has expired")
    return _content(call, oid, size, [])


def _content(call: Call, oid: str, size: int, headers: Headers) -> Answer:
    hub = call.hub

    def part(start: int, end: int) -> FilePart | Iterator[bytes | memoryview]:
        if hub.blobs.size(oid) is not None:
            return FilePart(hub.blobs.path(oid), start, end)
        return hub.cas.read(hub.cas.by_sha256[oid], start, end)

    return call.content(size, headers, part)


@routes.add("POST", "/{kind}/{repo}.git/info/lfs/objects/batch", "/{repo}.git/info/lfs/objects/batch", access="write")
def lfs_batch(call: Call, repo: Repo) -> Answer:
    """Where to upload each object (git-lfs batch API); a stored object needs no action."""
    out = []
    for item in call.json().get("objects", []):
        oid = str(item["oid"])
        answer = {"oid": oid, "size": item["size"]}
        if call.hub.lfs_size(oid) is None:
            answer["actions"] = {"upload": {"href": f"{call.base}/lfs/{oid}/{call.hub.sign('lfs', oid)}"}}
        out.append(answer)
    headers = [("Content-Type", "application/vnd.git-lfs+json")]
    return json_answer({"transfer": "basic", "objects": out}, headers=headers)


@routes.add("PUT", "/lfs/{oid}/{signature}", access="signed")
def lfs_put(call: Call, oid: str, signature: str) -> Answer:
    if not call.hub.is_signed(signature, "lfs", oid):
        raise HubError(403, "the upload address is not one of this Hub's")
    call.hub.blobs.put_lfs(oid, call.pieces)
    return Answer(headers=[("ETag", f'"{oid}"')])
