"""The main job: datasets on the Hub in, packed and balanced training data on the Hub out.

    python -m jobs.pack --config conf/jobs/demo.yaml pack.seq_len=8192
    spark-submit --properties-file conf/spark/standalone.conf jobs/pack.py --config conf/jobs/demo.yaml

`run` reads as the data flows: pin the sources, plan the shards, pack them in Spark, check the ledger, publish. What is
wrong with the input is said before Spark starts and before a repository is made. The repository changes once, at the
end. Run the same command again after a crash: finished shards are kept (`jobs.output.hub_draft`).
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # spark-submit puts this folder first on the path, where its modules shadow others
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from jobs.installed import check_or_exit

    check_or_exit()

import dataclasses
import functools
import logging
import time
from collections.abc import Sequence

from huggingface_hub import constants
from huggingface_hub.utils import disable_progress_bars
from pyspark.sql import SparkSession

from jobs.command import config_parser, fail, log_to_stderr
from jobs.java import JavaError
from jobs.output.finished_shard import ShardFile
from jobs.output.interface import Head, PublishError, Run
from jobs.output.open import Draft, Output, create_output, open_output
from jobs.revision import card, figures
from jobs.revision.append_rules import is_appended, read_appended, replaced_splits
from jobs.revision.build import Publication
from jobs.revision.fingerprints import run_fingerprint, shards_fingerprint
from jobs.shards.collect import SPARK_ERRORS, LostRowsError, WorkerError, as_line, collect, speed, worker_error
from jobs.shards.last_version import find_last_version
from jobs.shards.ledger import LedgerError, QualityError, ledger_of
from jobs.shards.plan import ShardPlan, plan_shards
from jobs.shards.session import active_session, get_session
from jobs.shards.settings import check_budgets, settings
from jobs.shards.udf import ShardWork
from jobs.sources.pin import check_unchanged, pin, read
from jobs.sources.pinned import PinnedSource, SourceError
from packing_udfs.config import Config, ConfigError
from packing_udfs.config_file import load
from packing_udfs.encode.processor import fetch
from packing_udfs.storage.folders import is_folder

__all__ = ["main", "run"]

USER_ERRORS = (ValueError, JavaError, WorkerError, PublishError, QualityError, LedgerError, LostRowsError)
INTERRUPTED = (
    "error: interrupted; the next run goes on from the shards in this one's pull request, if it came so far; the "
    "repository is as it was, unless the commit was on its way"
)
logger = logging.getLogger(__name__)


def run(config: Config, spark: SparkSession | None = None, *, spark_conf: str | None = None) -> dict:
    """Run a job and return its report: the published `report.json`, with `commit`, `speed`, `transfer` and `reuse`.

    `speed` tells of this call alone: seconds of packing, samples and image bytes a second, and the shards that an
    earlier attempt had finished. Raises ValueError for what is wrong with the configuration or the sources, before
    Spark starts; PublishError, QualityError or LedgerError when nothing was published and the repository is unchanged.
    """
    spark = active_session(spark)  # first: no job can run in some sessions
    processor = fetch(config.processor.path, config.processor.revision)
    output = open_output(config)
    output.check_token()
    sources = [pin(source, f"sources.{i}", config.output.retry_seconds) for i, source in enumerate(config.sources)]
    vision_unit = check_budgets(config, processor, sources)

    head = output.read_head()
    plan = _plan(config, sources, head)
    shards = shards_fingerprint(config, sources, processor, plan)
    name = Run(run_fingerprint(config, sources, processor), shards, len(plan.paths))
    if head.commit and is_appended(config, head, name.run):
        return _published(output, head.commit)
    appended = read_appended(config, head, output, processor, vision_unit)
    how = settings(config, sources).model_copy(update={"taken_down": frozenset(head.taken_down)})

    head = create_output(config, output, head)
    draft = output.draft(head, name)
    if draft.published:
        return _published(output, draft.published)
    last, why_afresh = find_last_version(config, plan, head, output, processor)
    work = ShardWork(how, processor, plan, output.upload, last, run=name.run[:12])
    files, how_fast = _pack(config, sources, work, draft, spark, spark_conf)
    publication = Publication(
        config=config,
        sources=sources,
        processor=processor,
        plan=plan,
        head=head,
        appended=appended,
        shards=files,
        ledger=ledger_of(config, sources, files),
        vision_unit=vision_unit,
    )
    beside = {"speed": how_fast, "transfer": figures.transfer(files), "reuse": figures.reuse(files, why_afresh)}
    return publication.publish(draft) | beside


def _plan(config: Config, sources: Sequence[PinnedSource], head: Head) -> ShardPlan:
    """The run's shards. Raises ValueError for what could otherwise not be published after hours of work."""
    if not any(source.num_rows for source in sources):
        raise ConfigError(f"sources: no rows in {', '.join(source.source.name for source in sources)}")
    card.read_front_matter(head.readme)
    replaced_splits(config, head)
    return plan_shards(config, sources, head)


def _published(output: Output, commit: str) -> dict:
    """The report of a run that an earlier attempt published without hearing of it."""
    logger.warning("this very run is published at %s: nothing is left to do", commit)
    return output.read_report(commit) | {"commit": commit, "speed": speed([], 0.0, 0)}


def _pack(
    config: Config, sources: Sequence[PinnedSource], work: ShardWork, draft: Draft,
    spark: SparkSession | None, spark_conf: str | None,
) -> tuple[list[ShardFile], dict]:  # fmt: skip
    """All files in the order of shards, and the speed. Shards that the draft kept are not packed."""
    kept = {file.shard for file in draft.kept}
    missing = [shard for shard in range(len(work.plan.paths)) if shard not in kept]
    packed, seconds = [], 0.0
    if missing:
        spark = get_session(spark_conf, spark)
        if (spark.sparkContext.master or "").startswith("local"):
            work = dataclasses.replace(work, run="")  # the executor's log is the user's terminal
        drops = config.shards.duplicates == "drop"
        read_all = [read(spark, source, config.shards.seed, drops_duplicates=drops) for source in sources]
        samples = functools.reduce(lambda a, b: a.unionByName(b), read_all)
        start = time.monotonic()  # like the bar: to start the session and to plan is no packing
        packed = collect(samples, work, missing if kept else None, on_finished=draft.add, num_kept=len(kept))
        seconds = time.monotonic() - start
    for source in sources:
        try:
            check_unchanged(source)
        except SourceError:
            draft.close("A source changed while it was read.")
            raise
    files = sorted([*draft.kept, *packed], key=lambda file: (file.shard, file.path))
    return files, speed(packed, seconds, len(kept))


def main(argv: list[str] | None = None, spark: SparkSession | None = None) -> int:
    """Command line; returns the exit code. `spark`: a session to use, as in a notebook."""
    parser = config_parser("pack", "Pack datasets of images and chat turns on the Hub into training data on the Hub.")
    parser.add_argument("--spark-conf", help="Spark properties of a session made here; default conf/spark/local.conf")
    args = parser.parse_args(argv)
    log_to_stderr()
    disable_progress_bars()  # of the Hub's client; the job has one bar over shards
    logging.getLogger("huggingface_hub").propagate = False  # its own handler writes them already
    try:
        result = run(load(args.config, args.overrides), spark, spark_conf=args.spark_conf)
    except USER_ERRORS as error:
        return fail(error)
    except SPARK_ERRORS as error:  # workers read the sources' columns before there are shards
        return fail(worker_error(error))
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130
    repo = result["config"]["output"]["repo"]
    url = "" if is_folder(repo) else f"\n             {constants.ENDPOINT}/datasets/{repo}"
    published = f"published    {repo} at {result['commit'][:12]}{url}"
    print(figures.as_text(result), as_line(result["speed"]), published, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
