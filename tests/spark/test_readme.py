"""What the README says is what happens; its reader section is run by tests/reader/test_readme.py."""

import re
import shlex

import pytest

from jobs import pack
from jobs.shards.session import ROOT
from packing_udfs import config_file

README = (ROOT / "README.md").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


def commands(start: str) -> list[list[str]]:
    lines = re.findall(rf"^    ({re.escape(start)}.*)$", README, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def test_the_override_example_runs(spark, source, monkeypatch, capsys):
    examples = commands(".venv/bin/python -m jobs.pack")
    assert examples[0][3:] == ["--help"]
    monkeypatch.chdir(ROOT)
    assert pack.main(examples[1][3:], spark) == 0
    assert "published    user/packed-8k at " in capsys.readouterr().out


@pytest.mark.parametrize("word", sorted(set(re.findall(r"\bmake ([a-z-]+)", README))))
def test_every_target_exists(word):
    assert re.search(rf"^{word}:", MAKEFILE, re.MULTILINE), f"make {word}"


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:jobs|packing_udfs|conf|tests)/[^`]+)`", README))))
def test_every_path_exists(path):
    assert all((ROOT / part.strip("` ")).exists() for part in path.split(",")), path


def test_the_demo_is_the_configuration_to_copy():
    assert config_file.load(ROOT / "conf/jobs/demo.yaml").output.repo == "user/demo-packed"
