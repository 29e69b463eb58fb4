"""The Xet store: its hashes, that it refuses what is not what it says, and reading ranges of what it holds."""

import contextlib
import hashlib
import io
import itertools
import shutil
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.local_hub.errors import HubError
from jobs.local_hub.store import xet_hashes, xet_shards, xorbs
from jobs.local_hub.store.disk import Disk
from jobs.local_hub.store.xet_hashes import hash_bytes, hash_text
from jobs.local_hub.store.xet_store import XetStore

from .xet_objects import chunk_hash, make_shard, make_xorb, noise, pack_chunk

# Reference hashes of the protocol: leaf i has the size 100 × i.
LEAVES = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "cfc5d07f6f03c29bbf424132963fe08d19a37d5757aaf520bf08119f05cd56d6",
    "c3e67584b5c4fc2a89837ec39e40f2c8a6bb0b2987ac94cd4b31e5fbdd210a72",
    "0d2beb91b9196929a5ddec9f6e306924ddf4a24268e3e59fd8464738d525af37",
    "adf8773496a9b7319b2e50dc98093f344053b17d8ad37100b9c07d9805988784",
    "4ac202caf347fc1e9c874b1ef6a1c5e619141eb775a6f43f0f0124ccd0060d9e",
    "b3b28636f65c149ea52eb1f94669466f70f033b54cea792824c696ba6ef3c389",
    "0e2c1a002aae913d2c0fc8ddfa4e9e14b7b311b3b0d458726d5d9f6a6318013c",
]
REFERENCE = {  # leaves: (xorb hash, file hash)
    (1,): (LEAVES[1], "8e16257caa3fe079d484d872a8975264b2ff683b0d6db9028cc7c0f968a45661"),
    (1, 2, 3): (
        "71ec1275fca074724e2dd666921b3277c7cee603e4d025bcab2d4050015be2bc",
        "54e55dccc6653c612bdb5576c5d3cb34bb31bc4e100248abccf4c908b3ef7715",
    ),
    tuple(range(8)): (
        "f62abe77e3fb9c954fe52b0028027ddc90c064c45951a4fd2211d87e5c0011db",
        "d1b068be5bbdb38992269e8efe61f601881e39f7a7585fd76883cc6ea5c23b44",
    ),
    tuple(i % 8 for i in range(64)): (  # several levels, cut early and at nine
        "6554007c9b5d0a5e7918f79596a1b68815c1407535585435f5735db761f21b88",
        "a8640ab81d48854e00078e12b1ea8be5d90be0ffb5f73a15b7009981d093ddd8",
    ),
    (1,) * 32: (
        "0a0123c1617921883b7e13902095fcb86676e77c49120c33b233003b0af0e0a6",
        "53af4711fd1d5e5bdc7f931b6be932314d8d673cb16ad2482f6f5222eaf9e63d",
    ),
}


@pytest.mark.parametrize("indices", REFERENCE, ids=len)
def test_hashes_are_those_of_the_protocol(indices):
    leaves = [(hash_bytes(LEAVES[i]), 100 * i) for i in indices]
    assert (hash_text(xet_hashes.merkle_root(leaves)), hash_text(xet_hashes.file_hash(leaves))) == REFERENCE[indices]


def test_a_hash_is_written_as_four_little_endian_numbers():
    text = "0706050403020100" + "0f0e0d0c0b0a0908" + "1716151413121110" + "1f1e1d1c1b1a1918"
    assert hash_text(bytes(range(32))) == text
    assert hash_bytes(text) == bytes(range(32))


@given(st.binary(min_size=1, max_size=70), st.sampled_from([0, 1, 2]))
def test_chunks_unpack_to_what_was_packed(data, scheme):
    packed = pack_chunk(data, scheme)
    assert bytes(xorbs.unpack(scheme, packed[8:], len(data))) == data
    if len(data) > 1:
        with pytest.raises(HubError):
            xorbs.unpack(scheme, packed[8:], len(data) - 1)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.data())
def test_a_table_finds_the_chunks_of_a_range(sizes, data):
    rows = xorbs.np.zeros(len(sizes), xorbs.TABLE)
    rows["unpacked"] = sizes
    table = xorbs.ChunkTable(rows)
    start = data.draw(st.integers(0, len(sizes) - 1))
    end = data.draw(st.integers(start + 1, len(sizes)))
    total = sum(sizes[start:end])
    assert table.unpacked(start, end) == total
    low = data.draw(st.integers(0, total - 1))
    high = data.draw(st.integers(low + 1, total))
    owner = [i for i in range(start, end) for _ in range(sizes[i])]  # of each byte of the chunks
    first, last, offset = table.cover(start, end, low, high)
    assert (first, last) == (owner[low], owner[high - 1] + 1)
    assert offset == sum(sizes[start:first])


@pytest.fixture
def cas(tmp_path):
    disk = Disk(tmp_path / "hub")
    yield XetStore(disk)
    assert list(disk.tmp.iterdir()) == []
    disk.close()


CHUNKS = [noise(i, 900 + 10 * i) for i in range(4)] + [b"z" * 2000, bytes(range(250)) * 4]


def put(cas: XetStore, chunks: list[bytes], **options) -> tuple[str, bool]:
    name, body = make_xorb(chunks, **options)
    return name, cas.xorbs.put(name, io.BytesIO(body).read)


def test_a_xorb_is_stored_once_without_its_footer(cas):
    name, body = make_xorb(CHUNKS)
    assert cas.xorbs.put(name, io.BytesIO(body + b"XETBLOB" + bytes(100)).read) is True
    assert cas.xorbs.put(name, io.BytesIO(body).read) is False
    table = cas.xorbs.table(name)
    assert table.span(0, len(table)) == (0, len(body))
    assert [bytes(c) for c in cas.xorbs.read(name, 1, 5)] == CHUNKS[1:5]
    assert cas.xorbs.path(name).read_bytes()[: len(body)] == body


def test_a_damaged_xorb_is_refused(cas):
    name, body = make_xorb(CHUNKS)
    flipped = bytearray(body)
    flipped[20] ^= 1  # a byte of an uncompressed chunk
    packed = bytearray(body)
    packed[len(pack_chunk(CHUNKS[0], 0)) + 30] ^= 0xFF  # a byte of an LZ4 frame
    wrong = {
        "another content": bytes(flipped),
        "a broken frame": bytes(packed),
        "cut in a chunk": body[:-1],
        "cut in a header": body[: len(pack_chunk(CHUNKS[0], 0)) + 5],
        "a chunk missing": body[: -len(pack_chunk(CHUNKS[5], 2))],
        "another order": make_xorb(CHUNKS[::-1])[1],
        "empty": b"",
        "no chunks": b"\x01" * 50,
        "a frame shorter than its header says": body.replace(
            pack_chunk(CHUNKS[4], 1)[:8], pack_chunk(CHUNKS[4], 1)[:5] + (2001).to_bytes(3, "little")
        ),
        "a scheme that does not exist": body[:4] + b"\x03" + body[5:],
    }
    for what, data in wrong.items():
        assert data != body, what
        with pytest.raises(HubError) as error:
            cas.xorbs.put(name, io.BytesIO(data).read)
        assert error.value.status == 400, what
        assert cas.xorbs.table(name) is None, what


def test_a_shard_is_refused_unless_its_file_can_be_read_back(cas):
    name, _ = put(cas, CHUNKS)
    other, _ = make_xorb([b"never uploaded" * 9])
    held = {name: CHUNKS, other: [b"never uploaded" * 9]}
    terms = [(name, 2, 5), (name, 0, 1)]
    good = make_shard(terms, held, [name])
    wrong = {
        "a xorb that is not here": make_shard([(other, 0, 1)], held, []),
        "a listed xorb that is not here": make_shard(terms, held, [other]),
        "another sha256": make_shard(terms, held, [name], sha256="0" * 64),
        "another file hash": make_shard(terms, held, [name], name="1" * 64),
        "another range hash": make_shard(terms, held, [name], range_hash=bytes(32)),
        "other chunks of a xorb": make_shard(terms, held, [name]).replace(chunk_hash(CHUNKS[5]), bytes(32)),
        "cut": good[:-50],
        "not a shard": b"x" * 200,
    }
    size = sum(map(len, CHUNKS[2:5]))
    wrong["chunks past the end"] = good.replace(struct.pack("<3I", size, 2, 5), struct.pack("<3I", size, 2, 7))
    wrong["another size"] = good.replace(struct.pack("<3I", size, 2, 5), struct.pack("<3I", size + 1, 2, 5))
    for what, data in wrong.items():
        assert data != good, what
        with pytest.raises(HubError) as error:
            cas.put_shard(data)
        assert error.value.status == 400, what
        assert cas.files == {}, what
        assert list(cas.folder.iterdir()) == [], what
    cas.put_shard(good)
    (file,) = cas.files
    content = b"".join(CHUNKS[2:5] + CHUNKS[:1])
    assert b"".join(cas.read(file, 0, len(content))) == content
    assert cas.by_sha256 == {hashlib.sha256(content).hexdigest(): file}


def test_the_index_is_the_same_after_a_restart(tmp_path):
    disk = Disk(tmp_path / "hub")
    cas = XetStore(disk)
    name, _ = put(cas, CHUNKS)
    cas.put_shard(make_shard([(name, 3, 6)], {name: CHUNKS}, [name]))
    answers = [cas.dedup(chunk_hash(c)) for c in CHUNKS]
    disk.close()
    disk = Disk(tmp_path / "hub")
    again = XetStore(disk)
    assert (again.files, again.by_sha256) == (cas.files, cas.by_sha256)
    assert [again.dedup(chunk_hash(c)) for c in CHUNKS] == answers
    # The first chunk of the file is known; a chunk in the middle is not one that clients ask about.
    assert [a is not None for a in answers] == [False, False, False, True, False, False]
    disk.close()


def test_a_dedup_answer_is_a_shard_that_lists_its_xorbs(cas):
    name, _ = put(cas, CHUNKS)
    cas.put_shard(make_shard([(name, 0, 6)], {name: CHUNKS}, [name]))
    answer = cas.dedup(chunk_hash(CHUNKS[0]))
    parsed = xet_shards.parse(answer)
    assert parsed.files == []
    assert [(x.name, [digest for digest, _ in x.leaves]) for x in parsed.xorbs] == [
        (name, [chunk_hash(c) for c in CHUNKS])
    ]
    # The footer finds the chunk table, which finds each chunk: record 0 is the xorb, then its chunks.
    footer = struct.unpack("<9Q", answer[-200:-128])
    assert footer[:2] == (1, 48)
    assert struct.unpack("<Q", answer[-8:])[0] == len(answer) - 200
    at, count = footer[7:9]
    table = list(struct.iter_unpack("<QII", answer[at : at + 16 * count]))
    want = [(int.from_bytes(chunk_hash(c)[:8], "little"), 0, i) for i, c in enumerate(CHUNKS)]
    assert table == sorted(want)
    record = answer[footer[2] : footer[2] + 48]
    assert hash_text(record[:32]) == name


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_ranges_are_read_and_rebuilt_whatever_the_layout(tmp_path_factory, data):
    """A file of arbitrary terms over two xorbs: plain reads and both kinds of reconstruction give its bytes."""
    pools = [[noise(10 * p + i, data.draw(st.integers(1, 40))) for i in range(5)] for p in range(2)]
    root = tmp_path_factory.mktemp("cas")
    with contextlib.closing(Disk(root)) as disk:
        cas = XetStore(disk)
        held = {put(cas, pool)[0]: pool for pool in pools}
        ranges = st.tuples(st.sampled_from(list(held)), st.integers(0, 4), st.integers(1, 5))
        terms = data.draw(st.lists(ranges.filter(lambda t: t[1] < t[2]), min_size=1, max_size=6))
        cas.put_shard(make_shard(terms, held, list(held)))
        content = b"".join(c for name, first, end in terms for c in held[name][first:end])
        (file,) = cas.files
        assert cas.files[file].size == len(content)
        start = data.draw(st.integers(0, len(content) - 1))
        end = data.draw(st.integers(start + 1, len(content)))
        assert b"".join(cas.read(file, start, end)) == content[start:end]
        for version in (1, 2):
            plan = cas.reconstruction(file, start, end, str, version)
            assert rebuild(cas, plan, end - start) == content[start:end]
    shutil.rmtree(root)


def rebuild(cas: XetStore, plan: dict, size: int) -> bytes:
    """What a client does with a reconstruction: fetch byte ranges, unpack their chunks, take the terms' chunks."""
    chunks: dict[tuple[str, int], bytes] = {}
    spans = []
    for xorb, entries in plan.get("fetch_info", {}).items():
        spans += [(xorb, e["range"], e["url_range"]) for e in entries]
    for xorb, entries in plan.get("xorbs", {}).items():
        spans += [(xorb, r["chunks"], r["bytes"]) for e in entries for r in e["ranges"]]
    for xorb, indices, span in spans:
        body = cas.xorbs.path(xorb).read_bytes()[span["start"] : span["end"] + 1]
        at = 0
        for index in range(indices["start"], indices["end"]):
            packed, unpacked = (int.from_bytes(body[at + i : at + i + 3], "little") for i in (1, 5))
            chunks[xorb, index] = bytes(xorbs.unpack(body[at + 4], body[at + 8 : at + 8 + packed], unpacked))
            at += 8 + packed
        assert at == len(body)
    out = b""
    for term in plan["terms"]:
        indices = range(term["range"]["start"], term["range"]["end"])
        part = b"".join(chunks[term["hash"], i] for i in indices)
        assert len(part) == term["unpacked_length"]
        out += part
    return out[plan["offset_into_first_range"] :][:size]


def test_chunk_ranges_that_touch_are_fetched_as_one(cas):
    chunks = [noise(i, 1000) for i in range(8)]
    name, body = make_xorb(chunks, [0] * 8)
    cas.xorbs.put(name, io.BytesIO(body).read)
    cas.put_shard(make_shard([(name, 4, 6), (name, 0, 2), (name, 1, 3)], {name: chunks}, [name]))
    (file,) = cas.files
    plan = cas.reconstruction(file, 0, cas.files[file].size, str, 2)
    ranges = [r for entry in plan["xorbs"][name] for r in entry["ranges"]]
    assert ranges == [  # a stored chunk has 8 + 1,000 bytes
        {"chunks": {"start": 0, "end": 3}, "bytes": {"start": 0, "end": 3023}},
        {"chunks": {"start": 4, "end": 6}, "bytes": {"start": 4032, "end": 6047}},
    ]


def test_a_range_reads_only_the_chunks_that_hold_it(cas, monkeypatch):
    chunks = [noise(i, 1000) for i in range(50)]
    name, _ = put(cas, chunks, schemes=[0] * 50)
    cas.put_shard(make_shard([(name, 0, 50)], {name: chunks}, [name]))
    (file,) = cas.files
    calls = itertools.count()
    monkeypatch.setattr(xorbs, "unpack", lambda scheme, data, size: (next(calls), data)[1])
    assert b"".join(cas.read(file, 20_500, 21_500)) == (chunks[20] + chunks[21])[500:1500]
    assert next(calls) == 2
