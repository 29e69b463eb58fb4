"""What a run shows of itself while it runs, and what it tells of its speed."""

import io
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobs.output.finished_shard import COUNTS, ShardFile
from jobs.shards import collect
from jobs.shards.collect import LostRowsError, Progress, as_line, speed
from jobs.shards.udf import log_shard


def test_what_arrives_is_given_in_order_and_to_the_last():
    """The third arrives as the job ends: it is not lost."""
    finished, seen, go_on = [], [], threading.Event()

    def job() -> None:
        finished.append("a")
        finished.append("b")
        assert go_on.wait(20)
        finished.append("c")

    with ThreadPoolExecutor(1) as thread:
        for one in collect._arrivals(finished, thread.submit(job)):
            seen.append(one)
            if len(seen) == 2:
                go_on.set()
    assert seen == ["a", "b", "c"]


def test_a_job_that_fails_gives_what_it_finished_first():
    finished, seen = [], []

    def job() -> None:
        finished.append("a")
        raise ValueError("of the job")

    with ThreadPoolExecutor(1) as thread:
        arrivals = collect._arrivals(finished, thread.submit(job))
        seen.append(next(arrivals))
        with pytest.raises(ValueError, match="of the job"):
            next(arrivals)
    assert seen == ["a"]


def test_the_bar_shows_shards_and_rates(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(collect.time, "monotonic", lambda: now[0])
    with Progress(4, num_kept=1) as bar:
        now[0] += 2
        bar.add({"num_samples": 300, "num_bytes_read": 5_000_000, "num_packs": 3})
        now[0] += 2
        bar.add({"num_samples": 500, "num_bytes_read": 7_000_000})
        bar.add({})  # of a shard without samples
    shown = capsys.readouterr().err
    assert "4/4" in shown
    assert "200 samples/s, 3.0 MB/s" in shown


def test_rows_that_spark_counted_and_nobody_got():
    counts = dict.fromkeys(COUNTS, 3)
    collect._check(counts, counts)
    collect._check(dict.fromkeys(COUNTS), {})  # of no shard at all
    with pytest.raises(LostRowsError, match="num_packs: Spark counted 4, 3 arrived"):
        collect._check(counts | {"num_packs": 4}, counts)


def test_speed():
    sums = json.dumps({"num_samples": 50, "num_packs": 7, "num_tokens": 900})
    rows = [ShardFile(shard=0, path="a", sums=sums, num_bytes_read=4000), ShardFile(shard=1, path="b")]
    assert speed(rows, 2.0, 3) == {
        "seconds": 2.0, "num_shards_kept": 3, "samples_per_second": 25.0, "bytes_read_per_second": 2000.0,
    }  # fmt: skip
    assert as_line(speed(rows, 2.0, 3)) == (
        "packing      2.0 s, 25 samples/s, 0.0 MB of images/s, 3 shards kept from before"
    )
    assert speed([], 0.0, 4)["samples_per_second"] == 0


def test_a_workers_log_has_a_line_of_json_for_each_shard():
    log_shard("abc", 0, {}, 0.0)  # makes the logger
    log, out = logging.getLogger("packing"), io.StringIO()
    handler = logging.StreamHandler(out)
    log.addHandler(handler)
    try:
        log_shard("", 1, {"num_samples": 5}, 1.0)  # local mode
        log_shard("abc", 7, {"num_samples": 5, "num_packs": 2}, 1.23456)
    finally:
        log.removeHandler(handler)
    (line,) = out.getvalue().splitlines()
    found = json.loads(line)
    assert (found["level"], found["msg"]) == ("INFO", "shard packed")
    expected = {"run": "abc", "shard": 7, "attempt": 0, "seconds": 1.235, "num_samples": 5, "num_packs": 2}
    assert found["context"] == expected
