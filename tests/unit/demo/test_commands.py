"""The demo's commands say what they take, and make nothing while they do."""

import os
import re
import subprocess
import sys

import pytest

from jobs.demo import __main__ as demo
from jobs.demo import edit
from jobs.local_hub import PORT, LocalHub
from jobs.shards.session import ROOT


@pytest.mark.parametrize("module", ["jobs.demo", "jobs.demo.edit", "jobs.demo.compare"])
def test_help(module, tmp_path):
    done = subprocess.run([sys.executable, "-m", module, "--help"], cwd=tmp_path, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python -m jobs.")
    assert list(tmp_path.iterdir()) == []


def test_an_edit_needs_a_hub_to_be_named(monkeypatch, capsys):
    for arguments, message in ((["--every=0"], "--every: 0 is refused: must be at least 1"), ([], "run `make hub`")):
        monkeypatch.delenv("HF_ENDPOINT", raising=False)
        with pytest.raises(SystemExit):
            edit.main(arguments)
        assert message in capsys.readouterr().err


def test_a_folder_whose_hub_is_served_is_refused(tmp_path, capsys):
    with LocalHub(tmp_path):
        assert demo.main([str(tmp_path)]) == 1
    assert re.fullmatch(r"error: .+\n", capsys.readouterr().err)


def test_what_comes_next_leads_to_what_is_served(tmp_path):
    """The address is that of `make hub`, and every command is one that there is."""
    assert f"http://127.0.0.1:{PORT}/datasets/{demo.PACKED}" in demo.NEXT
    modules = re.findall(r"python -m (jobs\.\w+)", demo.NEXT)
    assert modules == ["jobs.report", "jobs.inspect", "jobs.validate"]
    assert all((ROOT / module.replace(".", "/")).with_suffix(".py").is_file() for module in modules)
