"""A driver that runs job after job in one application: each line of input is a configuration, each line of output that
begins with `ANSWER` what came of it. Its arguments: the property file of its session.

Under the word `properties` instead of a configuration it answers with what Spark would tell about itself.
"""

import contextlib
import io
import json
import sys

from jobs import pack
from jobs.shards.session import get_session
from jobs.sources.pin import pin, read
from packing_udfs import config


def told(spark, tree: dict) -> str:
    """All properties, and the plan of reading a source in every mode of explain."""
    lines = [f"{name} {value}" for name, value in spark.sparkContext.getConf().getAll()]
    source = config.parse(tree).sources[0]
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        for mode in ("extended", "codegen", "cost", "formatted"):
            read(spark, pin(source, "sources.0")).explain(mode=mode)
    return "\n".join([*lines, text.getvalue()])


def main() -> None:
    spark = get_session(sys.argv[1])
    print("ANSWER", json.dumps({"application": spark.sparkContext.applicationId}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["ask"] == "told":
                answer = {"told": told(spark, request["tree"])}
            else:
                answer = {"commit": pack.run(config.parse(request["tree"]), spark)["commit"]}
        except pack.USER_ERRORS as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print("ANSWER", json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
