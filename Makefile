# Everything a person or CI runs. `make` alone lists it.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# On Linux, PyPI's torch is a CUDA build of several GB. Where PyTorch's own index is reachable, the CPU build is
#   make setup PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_ARGS ?=
BENCH ?=
KILLS ?= 1000
# Tests in two processes. Each starts with half of the list and takes from the other's end when it is done.
TWO := -n 2 --dist worksteal

help: ## list the targets
	@grep -hE '^[a-z0-9.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.ready ## make .venv with everything below installed

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	$(BIN)/python -m jobs.java > /dev/null 2>&1 || \
	  $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[java]'
	$(BIN)/python -m jobs.java > /dev/null
	touch $@

run: setup ## the main job on the embedded local Hub, with its result shown
	$(BIN)/python -m jobs.demo

test: setup ## all tests but the slow ones, and how much of the code they run
	$(BIN)/pytest -m 'not slow' $(TWO) --cov --cov-report=
	$(BIN)/coverage report --format=total | sed 's/.*/coverage: & % of the lines of jobs and packing_udfs, Spark workers aside/'

test-slow: setup test-spark-4.0 ## faults, kills, clusters, the oldest Spark and other tests that take minutes
	$(BIN)/pytest -m slow -n 2 --dist loadgroup

# The oldest Spark that we support in a folder of its own, in front of the newest on the path; all else is shared.
# The tests of what Spark does: the others run on the newest alone, and test what is written and said.
OLD_SPARK := $(CURDIR)/.spark-4.0
OLD_SPARK_TESTS := adapters adapter_fields conf data_source determinism job path_source repeats session \
  source_columns sources videos webdataset weights
test-spark-4.0: setup $(OLD_SPARK)/.ready ## the tests of what Spark does on Spark 4.0
	PYTHONPATH=$(OLD_SPARK) SPARK_HOME=$(OLD_SPARK)/pyspark $(BIN)/python -c \
	  'import pyspark, sys; sys.exit(not pyspark.__version__.startswith("4.0."))'
	PYTHONPATH=$(OLD_SPARK) SPARK_HOME=$(OLD_SPARK)/pyspark $(BIN)/pytest -m 'not slow' $(TWO) \
	  $(OLD_SPARK_TESTS:%=tests/spark/test_%.py)

$(OLD_SPARK)/.ready: | $(VENV)/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(OLD_SPARK) 'pyspark==4.0.*'
	touch $@

lint: setup ## style, import bans, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

fmt: setup ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## the benchmarks; one: make bench BENCH=packing
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[bench]'
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade --no-deps --target $(VENV)/peers -r tests/bench/peers.txt
	$(BIN)/python -m tests.bench $(BENCH)

soak: setup ## kill and resume the reader a thousand times, prints what was lost; other: make soak KILLS=100
	$(BIN)/python -W ignore -m tests.reader.soak --kills $(KILLS)

compare: setup ## padding and packing side by side, drawn on the demo: artifacts/compare/
	$(BIN)/python -m jobs.demo.compare

notebooks: setup ## run the notebooks, but the one for Databricks, and keep their output
	$(BIN)/python -m tests.spark.notebooks

hub: setup ## serve the local Hub of `make run`
	$(BIN)/python -m jobs.local_hub .local_hub

cluster: setup ## serve a standalone Spark cluster: a master and two workers on this machine
	$(BIN)/python -m jobs.standalone

DIST_ARGS ?=
dist: setup ## the archive that Spark's workers unpack: dist/packing-env.tar.gz; more: DIST_ARGS="--with av"
	$(BIN)/python -m jobs.dist dist/packing-env.tar.gz $(DIST_ARGS)
	ln -sfn $(VENV) env

clean: ## remove what the other targets made
	rm -rf $(VENV) $(OLD_SPARK) env .local_hub artifacts .pytest_cache .hypothesis .ruff_cache .coverage build dist *.egg-info

.PHONY: help setup run test test-slow test-spark-4.0 lint fmt bench soak compare notebooks hub cluster dist clean
