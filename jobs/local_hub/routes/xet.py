"""Xet: tokens for the content-addressed store, and the store's own API under /cas (Xet protocol specification).

A token says what it is good for and until when, and is signed; nothing is kept of it, so it outlives a restart.
The addresses of xorbs in reconstructions are signed instead, as they are fetched without a token. The store knows
no repositories: who holds a read token can read any content whose hash they know.
"""

import hmac
import time

from .cas import Cas
from .errors import HubError
from .routing import Answer, Call, FilePart, json_answer, route
from .xorbs import hash_bytes

TOKEN_SECONDS = 3600
SCOPES = {"read": ("read", "write"), "write": ("write",)}  # what is asked for: tokens that give it


def _cas(call: Call, need: str | None) -> Cas:
    """The store, for a caller whose token gives what is needed.

    Raises:
        HubError: 404, no Xet here; 401, no valid token.
    """
    if not call.hub.xet:
        raise HubError(404, "this Hub runs without Xet: set HF_HUB_DISABLE_XET=1")
    if need is not None:
        scope, expiry, signature = (*(call.bearer or "").split("."), "", "")[:3]
        good = hmac.compare_digest(call.hub.sign("xet", scope, expiry), signature)
        if not good or scope not in SCOPES[need] or int(expiry) < time.time():
            raise HubError(401, f"a Xet token for {need} is needed")
    return call.hub.cas


def _token(call: Call, scope: str) -> Answer:
    _cas(call, None)
    expiry = str(int(time.time()) + TOKEN_SECONDS)
    token, url = f"{scope}.{expiry}.{call.hub.sign('xet', scope, expiry)}", f"{call.base}/cas"
    headers = [("X-Xet-Access-Token", token), ("X-Xet-Cas-Url", url), ("X-Xet-Token-Expiration", expiry)]
    return json_answer({"accessToken": token, "exp": int(expiry), "casUrl": url}, headers=headers)


@route("GET", "/api/{kind}/{repo}/xet-read-token/{revision}")
def xet_read_token(call: Call, kind: str, repo: str, revision: str) -> Answer:
    call.repo(kind, repo)
    return _token(call, "read")


@route("GET", "/api/{kind}/{repo}/xet-write-token/{revision}", access="write")
def xet_write_token(call: Call, kind: str, repo: str, revision: str) -> Answer:
    call.repo(kind, repo)
    return _token(call, "write")


@route("POST", "/cas/v1/xorb-grants/default/{name}", access="signed")
def grant_xorb(call: Call, name: str) -> Answer:
    """Not offered: the answer makes a client send its xorbs to `put_xorb`, here, and remember that."""
    raise HubError(404, "this Hub takes xorbs itself")


@route("POST", "/cas/v1/xorbs/default/{name}", access="signed")
def put_xorb(call: Call, name: str) -> Answer:
    return json_answer({"was_inserted": _cas(call, "write").xorbs.put(name, call.read)})


@route("POST", "/cas/v1/shards", access="signed")
def put_shard_v1(call: Call) -> Answer:
    _cas(call, "write").put_shard(call.body())
    return json_answer({"result": 1})


@route("POST", "/cas/v2/shards", access="signed")
def put_shard(call: Call) -> Answer:
    """The answer is a stream of progress, of which only the last line matters."""
    _cas(call, "write").put_shard(call.body())
    return Answer(b'{"type":"result"}\n', headers=[("Content-Type", "application/x-ndjson")])


@route("GET", "/cas/v1/chunks/{prefix}/{chunk}", access="signed")
def find_chunk(call: Call, prefix: str, chunk: str) -> Answer:
    shard = _cas(call, "read").dedup(_parsed(chunk))
    if shard is None:
        raise HubError(404, f"chunk {chunk} is not known")
    return Answer(shard, headers=[("Content-Type", "application/octet-stream")])


def _parsed(text: str) -> bytes:
    raw = hash_bytes(text)
    if len(raw) != 32:
        raise HubError(400, f"{text} is not a hash of 32 bytes")
    return raw


def _reconstruct(call: Call, name: str, version: int) -> Answer:
    cas = _cas(call, "read")
    if name not in cas.files:
        raise HubError(404, f"file {name} is not known")
    start, end, _ = call.span(cas.files[name].size)

    def url(xorb: str) -> str:
        return f"{call.base}/cas/xorbs/{xorb}/{call.hub.sign('xorb', xorb)}"

    return json_answer(cas.reconstruction(name, start, end, url, version))


@route("GET", "/cas/v2/reconstructions/{name}", access="signed")
def reconstruct(call: Call, name: str) -> Answer:
    return _reconstruct(call, name, 2)


@route("GET", "/cas/v1/reconstructions/{name}", access="signed")
def reconstruct_v1(call: Call, name: str) -> Answer:
    return _reconstruct(call, name, 1)


@route("GET", "/cas/xorbs/{name}/{signature}", access="signed")
def get_xorb(call: Call, name: str, signature: str) -> Answer:
    """A range of a xorb's chunks as they were uploaded."""
    cas = _cas(call, None)
    table = cas.xorbs.table(name)
    if table is None or not hmac.compare_digest(call.hub.sign("xorb", name), signature):
        raise HubError(403, "the address of the xorb is not one of this Hub's")
    size = table.span(0, len(table))[1]
    start, end, status = call.span(size)
    headers = [("Content-Type", "application/octet-stream")]
    if status == 206:
        headers.append(("Content-Range", f"bytes {start}-{end - 1}/{size}"))
    return Answer(FilePart(cas.xorbs.path(name), start, end), status, headers)


@route("POST", "/cas/v1/telemetry", access="signed")
def telemetry(call: Call) -> Answer:
    """Taken and dropped, so that clients do not warn."""
    return Answer()
