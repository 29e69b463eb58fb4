"""The manifest's two files: read back as written, one fingerprint for all, and refused when they don't belong."""

import hashlib
import json

import pyarrow as pa
import pytest

from packing_udfs import contract, manifest
from packing_udfs.contract import ContractError
from packing_udfs.parquet.write import write_shard
from tests.unit.made_packs import packs_table

INFO = {"seq_len": 32, "processor": {"name": "owner/modèle"}}


@pytest.fixture
def rows(tmp_path) -> pa.Table:
    return write_shard(str(tmp_path / "a.parquet"), "data/train/00000.parquet", [packs_table(0, 3), packs_table(3, 2)])


def test_read_back_as_written(rows):
    info_json, parquet = manifest.dump(INFO, rows)
    loaded = manifest.load(info_json, parquet)
    assert loaded.row_groups == rows
    assert loaded.row_groups.schema == contract.MANIFEST_SCHEMA
    assert loaded.num_packs == 5
    assert loaded.info == INFO | {"contract": 2, "row_groups_sha256": hashlib.sha256(parquet).hexdigest()}
    assert loaded.fingerprint == hashlib.sha256(info_json).hexdigest()


def test_equal_content_makes_equal_bytes(rows):
    shuffled = dict(reversed(INFO.items()))
    columns = rows.select(rows.column_names[::-1])
    assert manifest.dump(INFO, rows) == manifest.dump(shuffled, columns)


def test_the_fingerprint_covers_the_row_groups(rows):
    one, other = manifest.load(*manifest.dump(INFO, rows)), manifest.load(*manifest.dump(INFO, rows.slice(0, 1)))
    assert one.fingerprint != other.fingerprint


def test_names_stay_readable(rows):
    assert "owner/modèle".encode() in manifest.dump(INFO, rows)[0]


def test_no_row_groups(rows):
    loaded = manifest.load(*manifest.dump(INFO, rows.slice(0, 0)))
    assert (loaded.num_packs, loaded.row_groups.num_rows) == (0, 0)


@pytest.mark.parametrize("version", [0, 1, "2", None])
def test_another_version_is_refused(rows, version):
    info_json, parquet = manifest.dump(INFO, rows)
    changed = json.dumps(json.loads(info_json) | {"contract": version}).encode()
    with pytest.raises(ContractError, match=f"contract version {version!r} is not 2, .*install .* or pack it again"):
        manifest.load(changed, parquet)


def test_a_file_of_another_commit_is_refused(rows):
    info_json, parquet = manifest.dump(INFO, rows)
    _, other = manifest.dump(INFO, rows.slice(1))
    named, found = (hashlib.sha256(data).hexdigest() for data in (parquet, other))
    with pytest.raises(
        ContractError, match=f"has sha256 {found}, but the JSON file names {named}: .*different commits"
    ):
        manifest.load(info_json, other)


@pytest.mark.parametrize("text", [b"", b"<html>404</html>", b"[]", b'"manifest"', b"\xff\xfe", b'{"contract": 2}'])
def test_what_is_no_manifest_is_refused(text):
    with pytest.raises(ContractError, match=r"^manifest: "):
        manifest.load(text, b"")
