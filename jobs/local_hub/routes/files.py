"""File contents: reading them by path, and uploading them by LFS.

LFS uploads are "basic": one PUT of the whole body to a signed address, of any size. Multipart is something the
server offers and clients never ask for, so it is not here.
"""

import hmac
import mimetypes

from .errors import HubError
from .routing import Answer, Call, FilePart, error_answer, json_answer, route


@route("GET", "/{kind}/{repo}/resolve/{revision}/{path*}", "/{repo}/resolve/{revision}/{path*}")
def resolve(call: Call, repo: str, revision: str, path: str, kind: str = "models") -> Answer:
    """A file's bytes or a range of them, from wherever they are stored, and the headers that clients cache by."""
    hub, found = call.hub, call.repo(kind, repo)
    commit = found.commit(revision)
    headers = [("X-Repo-Commit", commit["oid"])]
    entry = commit["files"].get(path)
    if entry is None:
        # The header lets clients remember that this commit does not have the file.
        return error_answer(HubError(404, f"Entry not found: {path}", "EntryNotFound"), headers)
    oid, size = entry.get("lfs", entry["oid"]), entry["size"]
    headers += [("ETag", f'"{oid}"'), ("Accept-Ranges", "bytes"), *_content_type(call, path)]
    if "lfs" in entry:
        headers += [("X-Linked-Etag", f'"{oid}"'), ("X-Linked-Size", str(size))]
    xet_hash = hub.cas.by_sha256.get(oid)
    if xet_hash and hub.xet:
        token = f"{call.base}/api/{kind}/{found.id}/xet-read-token/{commit['oid']}"
        headers += [("X-Xet-Hash", xet_hash), ("Link", f'<{token}>; rel="xet-auth"')]
    if hub.cdn and "lfs" in entry:
        headers.append(
            ("Location", f"{call.base.replace('127.0.0.1', 'localhost')}/cdn/{oid}/{hub.cdn_signature(oid)}")
        )
        return Answer(status=302, headers=headers)
    return _content(call, oid, size, headers)


def _content_type(call: Call, path: str) -> list[tuple[str, str]]:
    """A browser shows pages and pictures, and runs nothing that is in them; to clients all files are bytes."""
    shown, encoding = mimetypes.guess_type(path)
    is_shown = shown and not encoding and (shown == "text/html" or shown.startswith("image/"))
    if "text/html" not in (call.headers.get("Accept") or "") or not is_shown:
        return [("Content-Type", "application/octet-stream")]
    return [
        ("Content-Type", f"{shown}; charset=utf-8" if shown == "text/html" else shown),
        ("Content-Security-Policy", "sandbox"),
    ]


@route("GET", "/cdn/{oid}/{signature}", access="signed")
def cdn(call: Call, oid: str, signature: str) -> Answer:
    """A stored file's bytes or a range of them, for who has its signed address and sends no token along."""
    if call.bearer is not None:
        raise HubError(400, "only one way of authentication is allowed")
    if not hmac.compare_digest(call.hub.cdn_signature(oid), signature):
        raise HubError(403, "the address has expired")
    return _content(call, oid, call.hub.lfs_size(oid), [])


def _content(call: Call, oid: str, size: int, headers: list[tuple[str, str]]) -> Answer:
    hub = call.hub
    start, end, status = call.span(size)
    if status == 206:
        headers.append(("Content-Range", f"bytes {start}-{end - 1}/{size}"))
    if hub.blobs.size(oid) is not None:
        return Answer(FilePart(hub.blobs.path(oid), start, end), status, headers)
    return Answer(hub.cas.read(hub.cas.by_sha256[oid], start, end), status, headers, end - start)


@route(
    "POST",
    "/{kind}/{repo}.git/info/lfs/objects/batch",
    "/{repo}.git/info/lfs/objects/batch",
    access="write",
)
def lfs_batch(call: Call, repo: str, kind: str = "models") -> Answer:
    """Where to upload each object (git-lfs batch API); objects that are held already get no action."""
    call.repo(kind, repo)
    out = []
    for item in call.json().get("objects", []):
        oid = str(item["oid"])
        answer = {"oid": oid, "size": item["size"]}
        if call.hub.lfs_size(oid) is None:
            address = f"{call.base}/lfs/{oid}/{call.hub.sign('lfs', oid)}"
            answer["actions"] = {"upload": {"href": address}}
        out.append(answer)
    headers = [("Content-Type", "application/vnd.git-lfs+json")]
    return json_answer({"transfer": "basic", "objects": out}, headers=headers)


@route("PUT", "/lfs/{oid}/{signature}", access="signed")
def lfs_put(call: Call, oid: str, signature: str) -> Answer:
    if not hmac.compare_digest(call.hub.sign("lfs", oid), signature):
        raise HubError(403, "the upload address is not one of this Hub's")
    call.hub.blobs.put_lfs(oid, call.pieces)
    return Answer(headers=[("ETag", f'"{oid}"')])
