"""From bytes to packs: no copies, errors with an address, bounded memory."""

import io
import multiprocessing
import shutil
import signal
import threading
import time
import weakref

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packing_udfs import contract, manifest
from packing_udfs.parquet.ranges import parse_footer, read_footer
from packing_udfs.parquet.read import Packs, read_row_group
from packing_udfs.reader import PackedDataset
from packing_udfs.storage.byte_source import Stop
from packing_udfs.storage.hub import open_source
from packing_udfs.storage.mapped import map_range
from packing_udfs.stream import prefetch as prefetch_module
from tests.reader.conftest import SEQ_LEN, open_packed, packs_of, write_dataset


def manifest_of(folder) -> manifest.Manifest:
    return manifest.load(
        (folder / "manifest/train.json").read_bytes(), (folder / "manifest/train.parquet").read_bytes()
    )


def load(folder, index: int) -> tuple[pa.Table, list[pa.Buffer]]:
    """Row group `index` of a dataset by its manifest row alone."""
    source, stop = open_source(str(folder), retry_seconds=0), Stop()
    row = manifest_of(folder).row_groups.slice(index, 1).to_pylist()[0]
    metadata = read_footer(source, row, stop)
    return read_row_group(source.read(row["file"], row["offset"], row["bytes"], stop), row, metadata)


def test_a_row_group_is_what_parquet_reads(packed):
    expected = pq.ParquetFile(packed / "data/train/00001.parquet").read_row_group(2)
    table, images = load(packed, 6)
    assert table.drop("images").equals(expected.drop("images"))
    assert images == [image["bytes"] for of_pack in expected["images"].to_pylist() for image in of_pack]
    assert len(images) > 1


def test_images_of_a_local_file_are_its_own_pages(packed):
    files = sorted((packed / "data/train").glob("*.parquet"))
    try:
        map_range(str(files[0]), 0, 4, 1, lambda: None)
    except OSError:
        pytest.skip("this system reads into memory")
    assert len(files) > 1
    for _ in range(20):  # a busy system may drop pages that were just written; reading them caches them again
        for file in files:
            file.read_bytes()
        batches = list(open_packed(str(packed), decode="bytes"))
        images = [image for batch in batches for of_pack in batch["images"] for image in of_pack]
        assert len(images) > 20
        if _in_pages_of(f"{packed}/data/train/", images):
            return
    pytest.fail("no pass over the files gave their own pages")


def _in_pages_of(folder: str, images: list[pa.Buffer]) -> bool:
    with open("/proc/self/maps") as maps:
        spans = [line.split()[0].split("-") for line in maps if folder in line]
    spans = [range(int(start, 16), int(end, 16)) for start, end in spans]
    return all(any(image.address in span for span in spans) for image in images)


def test_token_arrays_are_views_of_arrow_memory(packed):
    table, images = load(packed, 0)
    packs = Packs(table, images, "data/train/00000.parquet", 0)
    for name in ("input_ids", "labels", "sample_lengths", "sample_num_images", "image_num_tokens", "sample_ids"):
        values = table[name].chunk(0).values
        start = values.buffers()[1].address
        for row in range(table.num_rows):
            array = packs[row][name]
            assert array.tolist() == table[name][row].as_py()
            assert start <= array.ctypes.data <= start + values.nbytes - array.nbytes or not len(array)
    assert packs[0]["input_ids"].dtype == np.int32
    assert packs[0]["sample_ids"].dtype == np.int64


def test_a_pack_has_what_was_stored(packed):
    expected = pq.ParquetFile(packed / "data/train/00001.parquet").read_row_group(0)
    for row in range(expected.num_rows):
        pack, stored = Packs(*load(packed, 4), "f", 0)[row], expected.slice(row, 1).to_pylist()[0]
        assert pack["image_sizes"].tolist() == [[size["height"], size["width"]] for size in stored["image_sizes"]]
        assert pack["images"] == [image["bytes"] for image in stored["images"]]
        for name in ("sample_sources", "num_tokens", "num_label_tokens", "num_images", "vision_cost"):
            assert pack[name] == stored[name]


@pytest.fixture
def damaged(packed, tmp_path):
    """A copy of the dataset, and a function that overwrites bytes of row group 2 of its second file."""
    shutil.copytree(packed, tmp_path, dirs_exist_ok=True)
    row = manifest_of(packed).row_groups.slice(6, 1).to_pylist()[0]
    assert (row["file"], row["row_group"]) == ("data/train/00001.parquet", 2)

    def damage(offset: int, data: bytes):
        with open(tmp_path / row["file"], "r+b") as file:
            file.seek(row[offset] if isinstance(offset, str) else row["offset"] + offset)
            file.write(data)

    return tmp_path, damage


def read_all(folder, **options):
    return list(PackedDataset(str(folder), global_batch_size=2, retry_seconds=0, **options))


def test_damaged_bytes_are_named(damaged):
    folder, damage = damaged
    damage(0, b"\xff" * 200)
    with pytest.raises(contract.ContractError, match=r"data/train/00001.parquet row group 2: its bytes are damaged"):
        read_all(folder)


def test_a_flipped_bit_in_an_image_is_found_unless_checksums_are_not_asked_for(tmp_path):
    folder = write_dataset(tmp_path, [[2]])
    file = folder / "data/train/00000.parquet"
    data, (_, images) = bytearray(file.read_bytes()), load(folder, 0)
    at = data.index(bytes(images[0])) + 300
    data[at] ^= 1
    file.write_bytes(data)
    with pytest.raises(
        contract.ContractError, match=r"00000.parquet row group 0: its bytes are damaged: .*[Cc][Rr][Cc]"
    ):
        read_all(folder, decode="bytes")
    assert len(read_all(folder, decode="bytes", verify=False)) == 1


def test_a_damaged_footer_is_named(damaged):
    folder, damage = damaged
    damage("footer_offset", b"\xff" * 200)
    with pytest.raises(contract.ContractError, match=r"data/train/00001.parquet: its footer cannot be read"):
        read_all(folder)


def test_packs_that_disagree_with_their_totals_are_named(packed):
    table, images = load(packed, 0)
    totals = pa.array([n + 1 for n in table["num_tokens"].to_pylist()], pa.int32())
    wrong = table.set_column(table.column_names.index("num_tokens"), "num_tokens", totals)
    with pytest.raises(contract.ContractError, match=r"f row group 5 row 0: input_ids counts \d+, the pack's total"):
        Packs(wrong, images, "f", 5)
    with pytest.raises(contract.ContractError, match=rf"f row group 5: {len(images) - 1} images, the packs' totals"):
        Packs(table, images[1:], "f", 5)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([("a", pa.int8())]), "its columns are not those of the contract"),
        (pa.schema([("a", pa.int8())], {b"packing_contract": b"2"}), "its columns are not those of the contract"),
        (pa.schema([("a", pa.int8())], {b"packing_contract": b"1"}), "contract version 1, this code reads 2"),
    ],
)
def test_files_of_another_contract_are_refused(schema, message):
    buffer = io.BytesIO()
    pq.write_table(schema.empty_table(), buffer)
    tail = buffer.getvalue()[4:]
    with pytest.raises(contract.ContractError, match=message):
        parse_footer("f", tail)


@pytest.mark.parametrize(
    ("scheme", "lanes", "prefetch", "ahead"),
    [("", 1, 0, 0), ("", 2, 0, 0), ("", 2, 1, 1), ("", 4, 4, 4), ("", 4, None, 4), ("file://", 3, None, 5)],
)
def test_at_most_lanes_and_prefetch_row_groups_are_in_memory(tmp_path, monkeypatch, scheme, lanes, prefetch, ahead):
    """Without `prefetch`: one a lane from a local disk, one and a half from elsewhere, of which 3 lanes make 5."""
    live, peak = weakref.WeakSet(), []

    class Counted(Packs):
        def __init__(self, *args):
            super().__init__(*args)
            live.add(self)
            peak.append(len(live))

    monkeypatch.setattr(prefetch_module, "Packs", Counted)
    folder = write_dataset(tmp_path, [[4] * (5 * lanes)])
    dataset = PackedDataset(f"{scheme}{folder}", global_batch_size=lanes, prefetch=prefetch, decode=None)
    batches = iter(dataset)
    seen = list(packs_of(next(batches)))
    end = time.monotonic() + 10
    while len(live) < lanes + ahead and time.monotonic() < end:  # until all is there that is fetched ahead
        time.sleep(0.01)
    seen += [pack for batch in batches for pack in packs_of(batch)]
    assert sorted(seen) == list(range(20 * lanes))
    assert len(peak) == 5 * lanes, "each row group is read once"
    assert max(peak) == lanes + ahead


def test_seq_len_is_the_manifests(packed):
    assert next(iter(PackedDataset(str(packed), global_batch_size=2)))["input_ids"].shape == (2, SEQ_LEN)


def test_a_thread_whose_end_nobody_waited_for_has_not_ended():
    """A second Ctrl-C while the reader is closed: the interpreter must still wait for what its threads are doing."""
    go_on = threading.Event()
    threads = prefetch_module._Threads(1, "fetch", Stop())
    done = threads.submit(go_on.wait)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            threads.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    (thread,) = threads._threads
    assert thread.is_alive()
    go_on.set()
    threads.join()
    assert done.result()
    assert not thread.is_alive()


def test_a_thread_does_not_wait_for_itself():
    """The garbage of a reader is collected in whatever thread there is, also in one of its own."""
    threads = prefetch_module._Threads(2, "fetch", Stop())
    assert threads.submit(threads.join).result(20) is None
    threads.join()
    assert not any(thread.is_alive() for thread in threads._threads)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_threads_of_its_parent():
    threads = prefetch_module._Threads(1, "fetch", Stop())
    child = multiprocessing.get_context("fork").Process(target=threads.join)
    child.start()
    child.join(20)
    child.kill()
    threads.join()
    child.join()
    assert child.exitcode == 0
