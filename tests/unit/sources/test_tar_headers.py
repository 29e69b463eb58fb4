"""The members of tars that other code wrote, and tars that were cut or torn."""

import gzip
import io
import tarfile

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.sources.row_counts import CountError, count_rows
from jobs.sources.tar_headers import BLOCK, Member, TarError, members

NAMES = st.text(st.sampled_from("abé/.漢 "), min_size=1, max_size=300).map(lambda name: f"x{name}y")


def written(files: dict[str, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def names(data: bytes) -> list[str]:
    return [member.name for member in members(io.BytesIO(data))]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(NAMES, st.binary(max_size=2000), max_size=6),
    st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
)
def test_members_are_those_that_were_written(files, kind):
    assert names(written(files, kind)) == list(files)


def test_a_name_in_two_fields():
    name = "/".join(["folder" * 5] * 4) + "/" + "n" * 60 + ".jpg"
    assert names(written({name: b"1"}, tarfile.USTAR_FORMAT)) == [name]


def test_only_regular_files_are_files():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind in (("d", tarfile.DIRTYPE), ("l", tarfile.SYMTYPE), ("f", tarfile.REGTYPE)):
            info = tarfile.TarInfo(name)
            info.type = kind
            tar.addfile(info)
    found = list(members(io.BytesIO(out.getvalue())))
    assert found == [Member("d/", False), Member("l", False), Member("f", True)]


EIGHT = {f"{i}.{kind}": bytes([i]) * 700 for i in range(4) for kind in ("jpg", "txt")}


def test_a_tar_that_was_cut_anywhere_is_refused():
    """Unless only zeros behind the end are gone: nothing is lost with them."""
    data = written(EIGHT)
    end = len(data.rstrip(b"\0"))
    end = -(-end // BLOCK) * BLOCK + BLOCK  # with one block of zeros
    assert list(EIGHT) == names(data[:end]) == names(data)
    for cut in [*range(0, end, 97), *range(0, end, BLOCK), end - 1]:
        with pytest.raises(TarError, match="it was cut"):
            names(data[:cut])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(EIGHT) - 1), st.integers(0, BLOCK - 1), st.integers(1, 255))
def test_a_torn_header_is_refused(member, byte, change):
    data = bytearray(written(EIGHT, tarfile.USTAR_FORMAT))
    data[member * 3 * BLOCK + byte] ^= change
    with pytest.raises(TarError):
        names(bytes(data))


def count(data: bytes, name: str) -> int:
    fs = fsspec.filesystem("memory")
    fs.pipe(f"/tars/{name}", data)
    return count_rows(fs, f"/tars/{name}")


def test_samples_are_runs_of_members():
    data = written(EIGHT)
    assert count(data, "a.tar") == count(gzip.compress(data), "a.tar.gz") == 4


@pytest.mark.parametrize(
    ("data", "name", "message"),
    [
        (b"", "a.tar", "it ends in a header at byte 0"),
        (written({}), "a.tar", "it has no samples"),
        (written(EIGHT)[:1000], "a.tar", "it was cut"),
        (written(EIGHT) + written(EIGHT), "a.tar", "and more follows: tars put together, or one with a hole"),
        (b"<html>" * 200, "a.tar", "checksum is wrong|no octal number"),
        (gzip.compress(written(EIGHT), mtime=0)[:100], "a.tar.gz", "end-of-stream|ended before"),
        (written(EIGHT), "a.tar.gz", "[Nn]ot a gzipped file"),
    ],
    ids=["no bytes", "no member", "cut", "two", "html", "a cut gzip", "no gzip"],
)
def test_what_is_no_sound_tar_is_said_in_a_line(data, name, message):
    with pytest.raises(CountError, match=message) as caught:
        count(data, name)
    assert "\n" not in str(caught.value)
