"""`python -m jobs.standalone`: a standalone Spark cluster on this machine."""

import os
import signal
import sys
import tempfile

from jobs.cluster.standalone import ClusterError, LocalCluster
from jobs.command import fail, new_parser
from jobs.java import JavaError

__all__ = ["main", "submit_line"]


def main(argv: list[str] | None = None) -> int:
    """Serve a cluster until interrupted; returns the exit code."""
    parser = new_parser("standalone", "Serve a local standalone cluster.")
    parser.add_argument("--port", type=int, default=7077, help="of the master; 0 takes a free one (default: 7077)")
    parser.add_argument("--cores", type=int, default=1, help="of each of the two workers (default: 1)")
    parser.add_argument("--memory", default="2g", help="of each worker's executors, Python aside (default: 2g)")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="packing-cluster-") as folder:
        try:
            with LocalCluster(folder, port=args.port, cores=args.cores, memory=args.memory) as cluster:
                print(
                    f"# A Spark cluster at {cluster.master}; logs in {folder}. Stop it with Ctrl-C. In another shell:"
                )
                if not os.environ.get("HF_TOKEN"):
                    print("# HF_TOKEN is not set here, so executors have none: set it before and start again.")
                print(submit_line(cluster.master), flush=True)
                signal.pause()
        except (ClusterError, JavaError) as error:
            return fail(error)
        except KeyboardInterrupt:
            pass
    return 0


def submit_line(master: str) -> str:
    """The command that runs a job on the cluster at `master`; it needs the archive of `make dist`."""
    return (
        f"PYSPARK_PYTHON=env/bin/python3 env/bin/spark-submit --master {master} "
        "--properties-file conf/spark/standalone.conf jobs/pack.py --config my_job.yaml"
    )


if __name__ == "__main__":
    sys.exit(main())
