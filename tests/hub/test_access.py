"""Who may do what, and that only this machine is asked."""

import json

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from jobs.local_hub import LocalHub

from .conftest import REPO, request

DATASET = {"repo_id": REPO, "repo_type": "dataset"}


def test_writing_needs_the_token(hub, api, make_api):
    anonymous = make_api(hub, token=False)
    assert anonymous.list_repo_files(**DATASET) == [".gitattributes"]  # reading what is public does not
    with pytest.raises(HfHubHTTPError) as error:
        anonymous.create_repo("user/other", repo_type="dataset")
    assert error.value.response.status_code == 401
    with pytest.raises(HfHubHTTPError) as error:
        anonymous.upload_file(path_or_fileobj=b"x", path_in_repo="a.txt", **DATASET)
    assert error.value.response.status_code == 401
    assert api.list_repo_files(**DATASET) == [".gitattributes"]


def test_a_wrong_token_is_refused_even_to_read(hub, api, make_api):
    wrong = make_api(hub, token="hf_wrong")
    for call in (lambda: wrong.whoami(), lambda: wrong.list_repo_files(**DATASET)):
        with pytest.raises(HfHubHTTPError) as error:
            call()
        assert error.value.response.status_code == 401
        assert not isinstance(error.value, RepositoryNotFoundError)
    assert api.whoami()["name"] == "user"


def test_a_private_repository_shows_itself_to_its_token_only(hub, api, make_api):
    api.upload_file(path_or_fileobj=b"secret", path_in_repo="a.txt", **DATASET)
    api.update_repo_settings(private=True, **DATASET)
    anonymous: HfApi = make_api(hub, token=False)
    with pytest.raises(RepositoryNotFoundError):
        anonymous.dataset_info(REPO)
    with pytest.raises(RepositoryNotFoundError):
        anonymous.hf_hub_download(filename="a.txt", **DATASET)
    path = f"/datasets/{REPO}/resolve/main/a.txt"
    assert [request(hub, "GET", path, token=t).status for t in (None, hub.token)] == [401, 200]
    for scope in ("read", "write"):
        assert request(hub, "GET", f"/api/datasets/{REPO}/xet-{scope}-token/main").status == 401
    assert api.dataset_info(REPO).private
    api.update_repo_settings(private=False, **DATASET)
    assert anonymous.dataset_info(REPO).private is False
    api.create_repo("user/hidden", private=True)
    assert api.model_info("user/hidden").private


def test_the_xet_store_takes_its_own_tokens_only(hub, api):
    name = "0" * 64
    reply = request(hub, "GET", f"/api/datasets/{REPO}/xet-read-token/main")
    read = reply.headers["X-Xet-Access-Token"]
    assert [request(hub, "GET", f"/cas/v2/reconstructions/{name}", token=t).status for t in (None, hub.token)] == [
        401,
        401,
    ]
    assert request(hub, "GET", f"/cas/v2/reconstructions/{name}", token=read).status == 404
    assert request(hub, "POST", f"/cas/v1/xorbs/default/{name}", b"x", token=read).status == 401  # read is not write
    scope, expiry, signature = read.split(".")
    for forged in (f"write.{expiry}.{signature}", f"{scope}.{int(expiry) + 1}.{signature}", "read", "read.x.y"):
        assert request(hub, "GET", f"/cas/v1/chunks/default/{name}", token=forged).status == 401
    late = f"read.1.{hub.sign('xet', 'read', '1')}"
    assert request(hub, "GET", f"/cas/v1/chunks/default/{name}", token=late).status == 401


def test_signed_addresses_cannot_be_made_up(hub, api):
    assert request(hub, "PUT", f"/lfs/{'0' * 64}/{'0' * 32}", b"x").status == 403
    assert request(hub, "GET", f"/cas/xorbs/{'0' * 64}/{'0' * 32}").status == 403


@pytest.mark.parametrize("oid", ["../../lock", "..%2F..%2Flock", "0" * 63, "A" * 64])
def test_an_object_id_cannot_leave_the_store(hub, api, oid):
    body = json.dumps({"objects": [{"oid": oid, "size": 1}]})
    reply = request(hub, "POST", f"/datasets/{REPO}.git/info/lfs/objects/batch", body, token=hub.token)
    assert reply.status == 400


def test_only_loopback_is_listened_to_and_one_hub_a_root(hub):
    assert hub._server.socket.getsockname()[0] == "127.0.0.1"
    with pytest.raises(ValueError, match="served by another Hub"):
        LocalHub(hub.root).start()


def test_a_port_in_use_leaves_the_root_to_others(hub, tmp_path):
    with pytest.raises(OSError, match="in use"):
        LocalHub(tmp_path / "other", port=hub._server.server_address[1]).start()
    with LocalHub(tmp_path / "other"):
        pass


def test_the_environment_points_clients_here(hub, tmp_path):
    environment = hub.environment()
    assert environment["HF_ENDPOINT"] == hub.url
    assert environment["HF_TOKEN"] == hub.token
    assert environment["HF_HOME"].startswith(str(hub.root))
    assert "HF_HUB_DISABLE_XET" not in environment
    with LocalHub(tmp_path / "other", xet=False) as other:
        assert other.environment()["HF_HUB_DISABLE_XET"] == "1"
