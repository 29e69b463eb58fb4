"""Who is asking, and repositories as a whole: create, delete, settings, branches and tags."""

from typing import Any

from jobs.local_hub.errors import HubError
from jobs.local_hub.store.commits import GITATTRIBUTES, regular_entry
from jobs.local_hub.store.discussions import AUTHOR
from jobs.local_hub.store.repos import Repo

from .routing import Answer, Call, Routes, json_answer

__all__ = ["routes"]

routes = Routes()


@routes.add("GET", "/api/whoami-v2", access="write")
def whoami(call: Call) -> Answer:
    token = {"displayName": "local", "role": "write", "createdAt": "2024-01-01T00:00:00.000Z"}
    user = {"id": "0", "fullname": AUTHOR["name"], "email": "user@localhost", "emailVerified": True, **AUTHOR}
    return json_answer({**user, "orgs": [], "auth": {"type": "access_token", "accessToken": token}})


def _named(value: dict[str, Any]) -> tuple[str, str]:
    """The kind and the id of the repository that the body of a request names."""
    namespace = value.get("organization") or AUTHOR["name"]
    return f"{value.get('type') or 'model'}s", f"{namespace}/{value.get('name')}"


def _is_private(value: dict[str, Any], default: bool) -> bool:
    if "visibility" in value:
        return value["visibility"] == "private"
    return bool(value.get("private", default))


@routes.add("POST", "/api/repos/create", access="write")
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


@routes.add("DELETE", "/api/repos/delete", access="write")
def delete_repo(call: Call) -> Answer:
    call.hub.repos.delete(call.repo(*_named(call.json())))
    return json_answer({})


@routes.add("PUT", "/api/{kind}/{repo}/settings", access="write")
def change_settings(call: Call, repo: Repo) -> Answer:
    value = call.json()
    with repo.lock:
        repo.save(private=_is_private(value, repo.state.private))
    return json_answer({"private": repo.state.private})


@routes.add("GET", "/api/{kind}/{repo}/auth-check")
def check_read(call: Call, repo: Repo) -> Answer:
    return json_answer({})


@routes.add("GET", "/api/{kind}/{repo}/auth-check/write", access="write")
def check_write(call: Call, repo: Repo) -> Answer:
    return json_answer({})


@routes.add("GET", "/api/{kind}/{repo}/refs")
def list_refs(call: Call, repo: Repo) -> Answer:
    refs = repo.refs

    def under(prefix: str, shown: str = "") -> list[dict[str, str]]:
        names = [ref.removeprefix(prefix) for ref in sorted(refs) if ref.startswith(prefix)]
        return [{"name": shown + n, "ref": prefix + n, "targetCommit": refs[prefix + n]} for n in names]

    out = {"branches": under("refs/heads/"), "tags": under("refs/tags/"), "converts": []}
    if call.query.get("include_prs"):
        out["pullRequests"] = under("refs/pr/", "refs/pr/")
    return json_answer(out)


@routes.add("POST", "/api/{kind}/{repo}/branch/{name}", access="write")
def create_branch(call: Call, repo: Repo, name: str) -> Answer:
    repo.create_ref(f"refs/heads/{name}", call.json().get("startingPoint") or "main")
    return json_answer({})


@routes.add("DELETE", "/api/{kind}/{repo}/branch/{name}", access="write")
def delete_branch(call: Call, repo: Repo, name: str) -> Answer:
    repo.delete_ref(f"refs/heads/{name}")
    return json_answer({})


@routes.add("POST", "/api/{kind}/{repo}/tag/{revision}", access="write")
def create_tag(call: Call, repo: Repo, revision: str) -> Answer:
    repo.create_ref(f"refs/tags/{call.json().get('tag')}", revision)
    return json_answer({})


@routes.add("DELETE", "/api/{kind}/{repo}/tag/{name}", access="write")
def delete_tag(call: Call, repo: Repo, name: str) -> Answer:
    repo.delete_ref(f"refs/tags/{name}")
    return json_answer({})
