"""`python -m tests.bench [bench …]`: run benchmarks, one JSON line per figure.

A bench is a module here with a function `run()` that yields lines; without names, all of them run. What stands behind a
name's `=`, as in `etl=full`, is given to `run`. A line is

    {"bench": …, "metric": …, "input": …, "ours": …, "peer": {name: value, …}, "unit": …}

or, for what cannot be measured here, {"bench": …, "metric": …, "input": …, "skipped": why}. Peers are measured in
the same run, on the same input.
"""

import importlib
import json
import pkgutil
import sys
from collections.abc import Callable

import tests.bench


def benches() -> dict[str, Callable]:
    """Each bench's `run`, by the name of its module."""
    names = sorted(module.name for module in pkgutil.iter_modules(tests.bench.__path__) if module.name != "__main__")
    modules = {name: importlib.import_module(f"tests.bench.{name}") for name in names}
    return {name: module.run for name, module in modules.items() if hasattr(module, "run")}


def main(names: list[str]) -> None:
    known = benches()
    unknown = [name for name in names if name.partition("=")[0] not in known]
    if unknown:
        sys.exit(f"no bench {', '.join(unknown)}; there are {', '.join(known)}")
    for given in names or known:
        name, _, argument = given.partition("=")
        for line in known[name](*filter(None, [argument])):
            print(json.dumps({"bench": name, **line}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
