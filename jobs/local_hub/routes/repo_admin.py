"""Who is asking, and repositories as a whole: create, delete, settings, branches and tags."""

from typing import Any

import yaml

from jobs.sources.licenses import ACCEPTED

from .commits import GITATTRIBUTES, regular_entry
from .discussions import AUTHOR
from .errors import HubError
from .repos import Repo
from .routing import Answer, Call, json_answer, route


@route("GET", "/api/whoami-v2", access="write")
def whoami(call: Call) -> Answer:
    token = {"displayName": "local", "role": "write", "createdAt": "2024-01-01T00:00:00.000Z"}
    user = {"id": "0", "fullname": AUTHOR["name"], "email": "user@localhost", "emailVerified": True, **AUTHOR}
    return json_answer({**user, "orgs": [], "auth": {"type": "access_token", "accessToken": token}})


def _named(value: dict[str, Any]) -> tuple[str, str]:
    """The kind and id of the repository in the body of a create or delete request."""
    namespace = value.get("organization") or AUTHOR["name"]
    return f"{value.get('type') or 'model'}s", f"{namespace}/{value.get('name')}"


def _is_private(value: dict[str, Any], default: bool) -> bool:
    if "visibility" in value:
        return value["visibility"] == "private"
    return bool(value.get("private", default))


@route("POST", "/api/repos/create", access="write")
def create_repo(call: Call) -> Answer:
    value = call.json()
    kind, repo_id = _named(value)
    url = f"{call.base}/{repo_id if kind == 'models' else f'{kind}/{repo_id}'}"
    try:
        files = {".gitattributes": regular_entry(call.hub.blobs, GITATTRIBUTES)}
        call.hub.repos.create(kind, repo_id, _is_private(value, False), files)
    except HubError as error:
        if error.status != 409:
            raise
        return json_answer({"error": str(error), "url": url}, 409)  # exist_ok=True reads the url
    return json_answer({"url": url, "name": repo_id, "id": repo_id})


@route("DELETE", "/api/repos/delete", access="write")
def delete_repo(call: Call) -> Answer:
    call.hub.repos.delete(call.repo(*_named(call.json())))
    return json_answer({})


@route("PUT", "/api/{kind}/{repo}/settings", access="write")
def change_settings(call: Call, kind: str, repo: str) -> Answer:
    found, value = call.repo(kind, repo), call.json()
    with found.lock:
        found.save(private=_is_private(value, found.state["private"]))
    return json_answer({"private": found.state["private"]})


@route("GET", "/api/{kind}/{repo}/auth-check", access="read")
def check_read(call: Call, kind: str, repo: str) -> Answer:
    call.repo(kind, repo)
    return json_answer({})


@route("GET", "/api/{kind}/{repo}/auth-check/write", access="write")
def check_write(call: Call, kind: str, repo: str) -> Answer:
    call.repo(kind, repo)
    return json_answer({})


@route("GET", "/api/{kind}/{repo}/refs")
def list_refs(call: Call, kind: str, repo: str) -> Answer:
    refs = call.repo(kind, repo).refs

    def under(prefix: str, name: str = "{}") -> list[dict]:
        found = sorted(ref for ref in refs if ref.startswith(prefix))
        return [{"name": name.format(ref.removeprefix(prefix)), "ref": ref, "targetCommit": refs[ref]} for ref in found]

    out = {"branches": under("refs/heads/"), "tags": under("refs/tags/"), "converts": []}
    if call.query.get("include_prs"):
        out["pullRequests"] = under("refs/pr/", "refs/pr/{}")
    return json_answer(out)


@route("POST", "/api/{kind}/{repo}/branch/{name}", access="write")
def create_branch(call: Call, kind: str, repo: str, name: str) -> Answer:
    start = call.json().get("startingPoint") or "main"
    call.repo(kind, repo).create_ref(f"refs/heads/{name}", start)
    return json_answer({})


@route("DELETE", "/api/{kind}/{repo}/branch/{name}", access="write")
def delete_branch(call: Call, kind: str, repo: str, name: str) -> Answer:
    call.repo(kind, repo).delete_ref(f"refs/heads/{name}")
    return json_answer({})


@route("POST", "/api/{kind}/{repo}/tag/{revision}", access="write")
def create_tag(call: Call, kind: str, repo: str, revision: str) -> Answer:
    call.repo(kind, repo).create_ref(f"refs/tags/{call.json().get('tag')}", revision)
    return json_answer({})


@route("DELETE", "/api/{kind}/{repo}/tag/{name}", access="write")
def delete_tag(call: Call, kind: str, repo: str, name: str) -> Answer:
    call.repo(kind, repo).delete_ref(f"refs/tags/{name}")
    return json_answer({})


def front_matter(text: str) -> dict[str, Any] | None:
    """The YAML at the head of a card, between two lines of `---`; None when there is none.

    Raises:
        HubError: 400, not YAML, or not a mapping.
    """
    lines = text.lstrip("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---":
        return None
    ends = [i for i, line in enumerate(lines) if i and line.rstrip() == "---"]
    if not ends:
        return None
    try:
        value = yaml.safe_load("\n".join(lines[1 : ends[0]]))
    except yaml.YAMLError as error:
        raise HubError(400, f"README.md: its metadata is not YAML: {error}") from error
    if value is not None and not isinstance(value, dict):
        raise HubError(400, "README.md: its metadata is not a mapping")
    return value or {}


@route("POST", "/api/validate-yaml")
def validate_yaml(call: Call) -> Answer:
    try:
        found = front_matter(str(call.json().get("content", "")))
    except HubError as error:
        return json_answer({"error": str(error), "errors": [{"message": str(error)}], "warnings": []}, 400)
    names = found.get("license") or []
    if odd := [name for name in (names if isinstance(names, list) else [names]) if name not in ACCEPTED]:
        message = f'"license" must be one of [{", ".join(sorted(ACCEPTED))}, array], not {odd[0]}'
        return json_answer({"error": message, "errors": [{"message": message}], "warnings": []}, 400)
    warning = {"message": "empty or missing yaml metadata in repo card"}
    return json_answer({"errors": [], "warnings": [] if found else [warning]})


def card_data(call: Call, repo: Repo, files: dict[str, dict]) -> dict[str, Any] | None:
    """The metadata of a repository's card, None when it has none that can be read."""
    readme = files.get("README.md")
    if readme is None or "lfs" in readme:
        return None
    try:
        return front_matter(call.hub.blobs.path(readme["oid"]).read_text("utf-8", "replace"))
    except HubError:
        return None
