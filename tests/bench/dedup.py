"""Packing again: bytes sent to the Hub over Xet / bytes of the split, beside packing from scratch with CDC on and off.

Each figure starts from the same first version, in a process and a store of its own, with the client's cache as the
first version's upload left it ("cold": empty). 5,000 samples of one photo-sized image (20, 50 and 200 kB, ±30 %) and a
question and answer each, packed as a worker packs them, in row groups of as many packs as `jobs.plan` tells users.
BENCH_SAMPLES and BENCH_KB ("20,50,200") choose others. Takes about a minute a figure at 200 kB, a quarter of it at 20.
"""

import io
import json
import multiprocessing
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from jobs.local_hub import LocalHub
from packing_udfs import contract, knapsack
from packing_udfs.knapsack import Amounts
from packing_udfs.published import straggler
from packing_udfs.shard import row_groups as row_groups_module
from packing_udfs.shard.keep_packs import Key, Previous, replan
from tests.bench import finevision, packing

REPO = "user/dedup"
SEQ_LEN = 16_384
SHARD_BYTES = 256 << 20
Sample = tuple[int, int]  # the number of its image, the version of its text


def run() -> Iterator[dict]:
    """All figures, one dict each."""
    yield from _evenness()
    num = int(os.environ.get("BENCH_SAMPLES", "5000"))
    for kb in map(int, os.environ.get("BENCH_KB", "20,50,200").split(",")):
        yield from _of_size(num, kb)


def _of_size(num: int, kb: int) -> Iterator[dict]:
    with tempfile.TemporaryDirectory(prefix="bench-dedup-") as folder:
        lab = _Lab(Path(folder), num, kb)
        lab.first()
        label = f"{num:,} samples, {kb} kB an image, {_packs_per_row_group(kb)} packs a row group"
        for name, change in _changes(num).items():
            yield _line(name, label, lab, change, seq_len=SEQ_LEN)
        yield _line("put_seq_len_doubled", label, lab, lambda samples: samples, seq_len=2 * SEQ_LEN)
        yield _append(label, lab, num)
        for name in ("put_identical", "put_edit_1pct", "put_delete_1pct"):
            change = _changes(num)[name]
            ours = lab.measure(change, cache="cold")
            theirs = {"not asked for its last version": lab.measure(change, cache="cold", remind=False)["put"]}
            yield {"metric": f"{name}_cold", "input": label, "ours": ours["put"], "peer": theirs, "unit": UNIT}


def _evenness() -> Iterator[dict]:
    """packs_again, straggler_again_*: fill and balance after 1 % of the texts were edited and 1 % of samples went."""
    samples = packing._fitting(finevision.draw(60_000), packing.TOKENS_BIND)
    rng, manifests, num = np.random.default_rng(0), {"ours": [], "from scratch": []}, Counter()
    for number, shard in enumerate(packing._shards(samples)):
        amounts = shard.amounts
        counts = zip(amounts["num_tokens"].tolist(), amounts["num_images"].tolist(), strict=True)
        keys = [Key(i << 33, "", num_tokens, num_images) for i, (num_tokens, num_images) in enumerate(counts)]
        last = _groups(amounts)
        previous = Previous(
            [[[keys[i] for i in pack] for pack in group] for group in last],
            [amounts.of_packs("vision_cost", group).tolist() for group in last],
        )
        gone, edited = np.split(rng.choice(len(keys), len(keys) // 50, replace=False), 2)
        for i in edited.tolist():
            num_tokens = min(packing.SEQ_LEN, max(1, keys[i].num_tokens + int(rng.integers(-20, 21))))
            amounts["num_tokens"][i] = num_tokens
            keys[i] = keys[i]._replace(sample_id=keys[i].sample_id + 1, num_tokens=num_tokens)
        stay = np.setdiff1d(np.arange(len(keys)), gone)
        now = amounts.take(stay)
        plan = replan(previous, [keys[i] for i in stay], now, packing.TOKENS_BIND, _packer(now),
                      num_packs_per_group=32, seed=0, max_drift=0.003)  # fmt: skip
        for name, groups in (("ours", plan.row_groups), ("from scratch", _groups(now))):
            num[name] += sum(map(len, groups))
            manifests[name] += [
                {"file": f"{number:05d}", "row_group": index, "num_rows": len(group),
                 "vision_cost": now.of_packs("vision_cost", group).tolist()}
                for index, group in enumerate(groups)
            ]  # fmt: skip
    label = "finevision, 60,000 samples, 1 % edited and 1 % gone"
    yield {"metric": "packs_again", "input": label, "ours": round(num["ours"] / num["from scratch"], 4),
           "peer": {"from scratch": 1}, "unit": f"packs / packs from scratch, {num['from scratch']}"}  # fmt: skip
    tables = {name: pa.Table.from_pylist(rows, schema=contract.MANIFEST_SCHEMA) for name, rows in manifests.items()}
    for world in (8, 64, 512):
        found = {name: round(straggler.straggler(table, world), 4) for name, table in tables.items()}
        yield {"metric": f"straggler_again_{world}", "input": label, "ours": found.pop("ours"), "peer": found,
               "unit": "mean over steps of max over ranks / mean"}  # fmt: skip


def _packer(amounts: Amounts) -> Callable[[list[int]], list[list[int]]]:
    def pack(members: list[int]) -> list[list[int]]:
        at = np.asarray(members, np.int64)
        bins = knapsack.balanced(amounts.take(at), packing.TOKENS_BIND)
        return [at[np.sort(b)].tolist() for b in bins]

    return pack


def _groups(amounts: Amounts) -> list[list[list[int]]]:
    """Row groups of packs from scratch."""
    bins = _packer(amounts)(list(range(len(amounts))))
    costs = amounts.of_packs("vision_cost", bins)
    return [[bins[i] for i in group] for group in row_groups_module.row_groups(costs, 32, 0)]


UNIT = "bytes sent / bytes of the split"


def _changes(num: int) -> dict[str, Callable[[list[Sample]], list[Sample]]]:
    """What a new version is, by figure: 1 % of the samples, scattered."""
    some = set(np.random.default_rng(1).choice(num, max(1, num // 100), replace=False).tolist())
    return {
        "put_identical": lambda samples: samples,
        "put_edit_1pct": lambda samples: [(i, 1) if i in some else (i, 0) for i, _ in samples],
        "put_delete_1pct": lambda samples: [sample for sample in samples if sample[0] not in some],
        "put_add_1pct": lambda samples: samples + [(num + i, 0) for i in range(len(some))],
    }


def _line(name: str, label: str, lab: "_Lab", change: Callable, *, seq_len: int) -> dict:
    ours = lab.measure(change, seq_len=seq_len)
    scratch = lab.measure(change, seq_len=seq_len, reuse=False)
    plain = lab.measure(change, seq_len=seq_len, reuse=False, base="plain", cdc=False)
    rows = lab.measure(change, base="rows")  # what the change costs where nothing is packed
    peers = {"from scratch, CDC on": scratch, "from scratch, CDC off": plain, "rows, not packed, CDC on": rows}
    return {
        "metric": name,
        "input": f"{label}; {ours['packs']} packs, from scratch {scratch['packs']}",
        "ours": ours["put"],
        "peer": {peer: found["put"] for peer, found in peers.items()},
        "unit": UNIT,
    }


def _append(label: str, lab: "_Lab", num: int) -> dict:
    """5 % more in files of their own; the peers pack all of it again."""
    new = [(num + i, 0) for i in range(num // 20)]
    ours = lab.measure(lambda samples: new, reuse=False, appended=True)
    peers = {
        "from scratch, CDC on": lab.measure(lambda samples: samples + new, reuse=False)["put"],
        "from scratch, CDC off": lab.measure(lambda samples: samples + new, reuse=False, base="plain", cdc=False)[
            "put"
        ],
    }
    return {"metric": "put_append_5pct", "input": label, "ours": ours["put"], "peer": peers, "unit": UNIT}


class _Lab:
    """Stores of the first version, and measurements that each start from a copy of one."""

    def __init__(self, folder: Path, num: int, kb: int):
        self.folder, self.num, self.kb = folder, num, kb
        self.samples: list[Sample] = [(i, 0) for i in range(num)]
        self.num_shards = max(1, 1 << (num * kb * 1000 // SHARD_BYTES).bit_length() >> 1)

    def first(self) -> None:
        """Upload the first version: with CDC and without it, and as rows that are not packed."""
        names = ("cdc", "plain", "rows")
        self.bases = {name: self._in_child(name, _kind(name) | {"commit": True}) for name in names}

    def measure(self, change: Callable, *, base: str = "cdc", cache: str = "warm", **options) -> dict:
        """Share of the split's bytes that a version sends, and its packs."""
        trial = self.folder / "trial"
        shutil.copytree(self.folder / base, trial, copy_function=os.link)  # the stores never change a file
        if cache == "cold":
            shutil.rmtree(trial / "cache")
        samples = change(self.samples)
        appended = options.pop("appended", False)
        options = _kind(base) | {"samples": samples, "last": self.bases[base]} | options
        made = self._in_child("trial", options)
        shutil.rmtree(trial)
        total = made["bytes"] + (self.bases[base]["bytes"] if appended else 0)
        return {"put": round(made["sent"] / total, 4), "packs": made["packs"]}

    def _in_child(self, name: str, options: dict) -> dict:
        """Pack and upload in a process that knows nothing but what the cache holds."""
        folder = self.folder / name
        with LocalHub(folder / "hub", port=getattr(self, "port", 0)) as hub:
            self.port = hub.port
            os.environ.update(hub.environment() | {"HF_XET_CACHE": str(folder / "cache")})
            work = {"samples": self.samples, "kb": self.kb, "num_shards": self.num_shards, **options}
            with multiprocessing.get_context("spawn").Pool(1) as child:
                made = child.apply(_pack, (work,))
            log = hub.requests.records()
            made["sent"] = sum(r.bytes_in for r in log if r.route in ("put_xorb", "put_shard"))
        return made


def _pack(work: dict) -> dict:
    """In the child: pack each shard as a worker does, upload it, and commit where asked for."""
    from huggingface_hub import HfApi

    from jobs.demo.start import DEMO
    from jobs.output.finished_shard import from_ipc
    from jobs.output.hub_repository import Repository
    from jobs.shards.last_version import LastVersion
    from jobs.shards.plan import ShardPlan
    from jobs.shards.udf import ShardWork, run_shard
    from packing_udfs.encode import processor
    from packing_udfs.shard.pack_shard import PackSettings

    if not work["cdc"]:
        options = contract.writer_options
        contract.writer_options = lambda *a: options(*a) | {"use_content_defined_chunking": False}
    repository = Repository(REPO, 30)
    HfApi().create_repo(REPO, repo_type="dataset", exist_ok=True)
    last = None
    if work.get("reuse", True) and "last" in work and not work["rows"]:
        source = repository.source(work["last"]["commit"])
        row_groups = pa.concat_tables(map(from_ipc, work["last"]["row_groups"]))
        last = LastVersion(repository, source, row_groups, 0.003, False)
        if not work.get("remind", True):
            LastVersion.remind = lambda *args: None
    paths = tuple(f"data/train/{i:05d}.parquet" for i in range(work["num_shards"]))
    settings = PackSettings(
        seq_len=work.get("seq_len", SEQ_LEN), num_packs_per_row_group=_packs_per_row_group(work["kb"])
    )
    if settings.seq_len != SEQ_LEN:
        last = None  # as jobs.shards.last_version decides
    shard_work = ShardWork(settings, processor.fetch(str(DEMO / "processor"), "main"), ShardPlan(0, paths, 0, 0.0),
                           repository.upload, last)  # fmt: skip
    rows = []
    for shard, frame in enumerate(_frames(work["samples"], work["kb"], work["num_shards"])):
        if len(frame):
            rows += _unpacked(paths[shard], frame, repository) if work["rows"] else run_shard(shard, frame, shard_work)
    made = {
        "bytes": sum(row.num_bytes for row in rows),
        "packs": sum(json.loads(row.sums)["num_packs"] for row in rows),
        "row_groups": [row.row_groups for row in rows],
    }
    if work.get("commit"):
        operations = [row.operation for row in rows]
        made["commit"] = HfApi().create_commit(REPO, operations, commit_message="1", repo_type="dataset").oid
    return made


def _kind(base: str) -> dict:
    """How a base is written: in `_pack`'s words."""
    return {"cdc": base != "plain", "rows": base == "rows"}


def _packs_per_row_group(kb: int) -> int:
    """As many as `jobs.plan` would tell a user of such images."""
    from jobs.forecast.forecast import better_row_groups
    from packing_udfs.shard.pack_shard import PackSettings

    usual = PackSettings.num_packs_per_row_group
    of_a_pack = 12.7 * kb * 1000  # samples in SEQ_LEN tokens, an image each
    return better_row_groups(usual, usual * of_a_pack, float("inf"), 1) or usual


def _unpacked(path: str, frame: pd.DataFrame, repository) -> list:
    """A shard's rows as `datasets` would write them: images and texts, a sample a row."""
    from jobs.output.finished_shard import ShardFile

    table = pa.table({name: pa.array(frame[name].tolist()) for name in ("images", "messages")})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "shard.parquet")
        pq.write_table(table, file, row_group_size=1000, use_content_defined_chunking=True, write_page_index=True)
        operation = repository.upload(path, file)
        sums = json.dumps({"num_packs": 0})
        return [ShardFile(shard=0, path=path, num_bytes=file.stat().st_size, sums=sums, operation=operation)]


def _frames(samples: list[Sample], kb: int, num_shards: int) -> Iterator[pd.DataFrame]:
    """The rows of each shard, with ids that have the images' half and the content's half."""
    headers = [_header(width) for width in range(320, 640, 32)]
    for shard in range(num_shards):
        rows = []
        for image, version in samples:
            rng = np.random.default_rng([image, kb])
            upper = int(rng.integers(-(1 << 31), 1 << 31))
            if upper % num_shards != shard:
                continue
            header = headers[int(rng.integers(len(headers)))]
            body = rng.bytes(int(kb * 1000 * rng.uniform(0.7, 1.3)) - len(header))
            text = np.random.default_rng([image, version, 9])
            rows.append(
                {
                    "sample_id": upper << 32 | int(text.integers(1 << 32)),
                    "source": "made",
                    "file": "0.parquet",
                    "row": image,
                    "copy": 0,
                    "messages": [_message("user", [("image", None), ("text", _words(text, 12))]),
                                 _message("assistant", [("text", _words(text, 60))])],
                    "images": [{"bytes": header + body, "path": f"{image}.jpg"}],
                    "reason": None,
                    "num_turns_dropped": 0,
                }
            )  # fmt: skip
        yield pd.DataFrame(rows)


def _header(width: int) -> bytes:
    """A JPEG of this width up to its coded pixels, which nothing looks at: in photos they are all but random."""
    out = io.BytesIO()
    Image.new("RGB", (width, 480)).save(out, "JPEG")
    data = out.getvalue()
    scan = data.index(b"\xff\xda") + 2
    return data[: scan + int.from_bytes(data[scan : scan + 2], "big")]


def _message(role: str, parts: list[tuple[str, str | None]]) -> dict:
    return {"role": role, "content": [{"type": kind, "text": text} for kind, text in parts]}


def _words(rng: np.random.Generator, mean: int) -> str:
    """Words of a skewed vocabulary."""
    return " ".join(f"w{word}" for word in np.minimum(rng.zipf(1.4, max(3, rng.poisson(mean))), 9_999).tolist())
