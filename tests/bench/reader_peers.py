"""What reads packs, each in a fresh process: `python -m tests.bench.reader_peers NAME OPTIONS` prints a JSON line.

A fresh process, because clients read their environment when they are imported, and so that nobody inherits another's
memory. Each first yields 0 when it is ready to read; rates count from there, so that imports and looking up what there
is are not in them.
"""

import glob
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator


def packed(path: str, *, decode: str | None = "bytes", verify: bool = True) -> Iterator[int]:
    """Ours: padded int64 batches with masks, positions and segments; images as they are asked for."""
    from packing_udfs.reader import PackedDataset

    dataset = PackedDataset(path, global_batch_size=8, decode=decode, verify=verify)
    yield 0
    for of_step in dataset:
        yield len(of_step["is_padding"])


def read_row_group(path: str, *, verify: bool) -> Iterator[int]:
    """pyarrow alone: Arrow tables with all columns, and nothing made of them."""
    import pyarrow.parquet as pq

    yield 0
    for name in sorted(glob.glob(f"{path}/data/train/*.parquet")):
        file = pq.ParquetFile(name, page_checksum_verification=verify)
        for i in range(file.num_row_groups):
            yield file.read_row_group(i).num_rows


def datasets(path: str, *, batch: int = 8, ahead: bool) -> Iterator[int]:
    """`datasets` streaming: Arrow tables of a batch each, images not decoded. `ahead`: fragments are fetched ahead."""
    import pyarrow as pa
    import pyarrow.dataset
    from datasets import load_dataset

    options = {}
    if ahead:
        cache = pa.CacheOptions(prefetch_limit=1, range_size_limit=128 << 20)
        options["fragment_scan_options"] = pa.dataset.ParquetFragmentScanOptions(cache_options=cache)
    stream = load_dataset(path, split="train", streaming=True, **options)
    yield 0
    for table in stream.decode(False).with_format("arrow").iter(batch_size=batch):
        yield table.num_rows


def write_mds(path: str, out: str) -> Iterator[int]:
    """The packs of a folder as MDS shards; a pack's images are one field and their lengths another."""
    import numpy as np
    import pyarrow.parquet as pq

    streaming = _mosaicml()
    yield 0
    lists = ("input_ids", "labels", "sample_lengths", "sample_num_images", "image_num_tokens", "sample_ids", "sizes")
    columns = dict.fromkeys((*lists, "image_lengths"), "ndarray") | {"images": "bytes", "sample_sources": "json"}
    with streaming.MDSWriter(out=out, columns=columns, size_limit=128 << 20) as writer:
        for name in sorted(glob.glob(f"{path}/data/train/*.parquet")):
            for pack in pq.read_table(name).to_pylist():
                images = [image["bytes"] for image in pack["images"]]
                row = {name: np.asarray(pack[name]) for name in lists if name != "sizes"}
                row["sizes"] = np.asarray([[size["height"], size["width"]] for size in pack["image_sizes"]])
                row["image_lengths"] = np.asarray([len(image) for image in images])
                writer.write(row | {"images": b"".join(images), "sample_sources": pack["sample_sources"]})
                yield 1


def mosaicml(path: str) -> Iterator[int]:
    """mosaicml-streaming: a dict of arrays and bytes a pack, neither padded nor verified."""
    dataset = _mosaicml().StreamingDataset(local=path, shuffle=False, batch_size=1)
    yield 0
    for _ in dataset:
        yield 1


def _mosaicml():
    """`make bench` installs it beside the environment, whose numpy and transformers it would replace by older ones. It
    imports torchvision for classes that are not used here; an empty one will do."""
    import types
    from importlib.machinery import ModuleSpec

    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
        module = types.ModuleType(name)
        module.__spec__, module.__path__ = ModuleSpec(name, None), []
        sys.modules[name] = module
    sys.modules["torchvision.datasets"].VisionDataset = object
    sys.modules["torchvision.transforms.functional"].to_tensor = None
    sys.path.append(f"{sys.prefix}/peers")
    import streaming

    return streaming


def rate(rows: Callable[[], Iterator[int]], rounds: int = 1) -> dict:
    """Rows a second of wall time and of processor time, the best round of each."""
    walls, cpus = [], []
    for _ in range(rounds):
        stream, count = rows(), 0
        next(stream)
        wall, cpu = time.perf_counter(), time.process_time()
        for num in stream:
            count += num
        walls.append(count / (time.perf_counter() - wall))
        cpus.append(count / (time.process_time() - cpu))
    return {"rows": count, "rows_per_s": max(walls), "rows_per_cpu_s": max(cpus)}


def resume(path: str) -> dict:
    """One batch at 99 % of an epoch; what was fetched for it, the Hub's log says."""
    from packing_udfs.reader import PackedDataset

    dataset = PackedDataset(path, global_batch_size=8, decode="bytes")
    dataset.seek(0, dataset.num_steps * 99 // 100)
    batches = iter(dataset)
    next(batches)
    time.sleep(2)  # all that is fetched ahead arrives
    return {"steps": dataset.num_steps}


def memory(path: str, row_group_bytes: float) -> dict:
    """Resident MB for each GB streamed, by least squares over all but the first 200 row groups."""
    import numpy as np

    points, count = [], 0
    for num in packed(path):
        count += num
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        points.append((count / 32, pages * resource.getpagesize() / 1e6))
    groups, megabytes = np.array(points).T
    late = groups > 200
    slope = np.polyfit(groups[late] * row_group_bytes / 1e9, megabytes[late], 1)[0]
    return {"slope": float(slope), "streamed_gb": groups[-1] * row_group_bytes / 1e9, "rss_mb": float(megabytes[-1])}


if __name__ == "__main__":
    name, options = sys.argv[1], json.loads(sys.argv[2])
    rounds = options.pop("rounds", 1)
    call = globals()[name]
    result = call(**options) if name in ("resume", "memory") else rate(lambda: call(**options), rounds)
    print(json.dumps(result))
