"""Xet: tokens for the content-addressed store, and the store's own API under /cas (Xet protocol specification).

A token says what it allows and until when, and is signed. The Hub stores no tokens, so they outlive a restart. The
addresses of xorbs in reconstructions are signed instead, as they are fetched without a token. The store knows no
repositories: with a read token one can read any content by its hash.
"""

import time

from jobs.local_hub.errors import HubError
from jobs.local_hub.store.repos import Repo
from jobs.local_hub.store.xet_hashes import hash_bytes
from jobs.local_hub.store.xet_store import XetStore

from .routing import Answer, Call, FilePart, Routes, json_answer

__all__ = ["routes"]

routes = Routes()

TOKEN_SECONDS = 3600
SCOPES = {"read": ("read", "write"), "write": ("write",)}  # what is asked for: tokens that give it
BYTES = [("Content-Type", "application/octet-stream")]


def _check_xet(call: Call) -> None:
    if not call.hub.xet:
        raise HubError(404, "this Hub runs without Xet: set HF_HUB_DISABLE_XET=1")


def _cas(call: Call, need: str) -> XetStore:
    """The store; HubError 401 unless the token allows what is needed, 404 without Xet."""
    _check_xet(call)
    scope, expiry, signature = (*(call.bearer or "").split("."), "", "")[:3]
    good = call.hub.is_signed(signature, "xet", scope, expiry)
    if not good or scope not in SCOPES[need] or int(expiry) < time.time():
        raise HubError(401, f"a Xet token for {need} is needed")
    return call.hub.cas


@routes.add("GET", "/api/{kind}/{repo}/xet-{scope}-token/{revision}")
def xet_token(call: Call, repo: Repo, revision: str, scope: str) -> Answer:
    call.check_access(scope)
    _check_xet(call)
    expiry = int(time.time()) + TOKEN_SECONDS
    token, url = f"{scope}.{expiry}.{call.hub.sign('xet', scope, str(expiry))}", f"{call.base}/cas"
    headers = [("X-Xet-Access-Token", token), ("X-Xet-Cas-Url", url), ("X-Xet-Token-Expiration", str(expiry))]
    return json_answer({"accessToken": token, "exp": expiry, "casUrl": url}, headers=headers)


@routes.add("POST", "/cas/v1/xorb-grants/default/{name}", access="signed")
def grant_xorb(call: Call, name: str) -> Answer:
    """Refused, which makes a client send its xorbs to `put_xorb`, and remember that."""
    raise HubError(404, "this Hub takes xorbs itself")


@routes.add("POST", "/cas/v1/xorbs/default/{name}", access="signed")
def put_xorb(call: Call, name: str) -> Answer:
    return json_answer({"was_inserted": _cas(call, "write").xorbs.put(name, call.read)})


@routes.add("POST", "/cas/v{version}/shards", access="signed")
def put_shard(call: Call, version: str) -> Answer:
    """Version 2 answers with a stream of progress, of which only the last line matters."""
    _cas(call, "write").put_shard(call.body())
    if version == "1":
        return json_answer({"result": 1})
    return Answer(b'{"type":"result"}\n', headers=[("Content-Type", "application/x-ndjson")])


@routes.add("GET", "/cas/v1/chunks/{prefix}/{chunk}", access="signed")
def find_chunk(call: Call, prefix: str, chunk: str) -> Answer:
    cas, digest = _cas(call, "read"), hash_bytes(chunk)
    if len(digest) != 32:
        raise HubError(400, f"{chunk} is not a hash of 32 bytes")
    shard = cas.dedup(digest)
    if shard is None:
        raise HubError(404, f"chunk {chunk} is not known")
    return Answer(shard, headers=BYTES)


@routes.add("GET", "/cas/v{version}/reconstructions/{name}", access="signed")
def reconstruct(call: Call, version: str, name: str) -> Answer:
    cas = _cas(call, "read")
    if name not in cas.files:
        raise HubError(404, f"file {name} is not known")
    start, end, _ = call.span(cas.files[name].size)

    def url(xorb: str) -> str:
        return f"{call.base}/cas/xorbs/{xorb}/{call.hub.sign('xorb', xorb)}"

    return json_answer(cas.reconstruction(name, start, end, url, int(version)))


@routes.add("GET", "/cas/xorbs/{name}/{signature}", access="signed")
def get_xorb(call: Call, name: str, signature: str) -> Answer:
    """A range of a xorb's chunks as they were uploaded."""
    _check_xet(call)
    xorbs = call.hub.cas.xorbs
    table = xorbs.table(name)
    if table is None or not call.hub.is_signed(signature, "xorb", name):
        raise HubError(403, "the address of the xorb is not one of this Hub's")
    size = table.span(0, len(table))[1]
    return call.content(size, BYTES, lambda start, end: FilePart(xorbs.path(name), start, end))


@routes.add("POST", "/cas/v1/telemetry", access="signed")
def telemetry(call: Call) -> Answer:
    """Taken and dropped, so that clients do not warn."""
    return Answer()
