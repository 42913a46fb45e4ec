"""The Makefile: help that is true, variables that reach what reads them, a .venv made first."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.samples import ROOT

# Stands in for Python: makes an environment of itself, and logs what it is told to do.
FAKE_PYTHON = """\
#!/bin/sh
case "$*" in
  .ci/environment.py*) mkdir -p "${2%/*}/bin"; cp "$0" "${2%/*}/bin/python"; touch "$2";;
esac
echo "$*" $OMP_NUM_THREADS $PYTHONOPTIMIZE >> log
"""
LINT = ["-m ruff check", "-m ruff format --check"]
FIRST = ".ci/environment.py .venv/made-by-.-fake requirements.txt"
TESTS = ".ci/environment.py .venv/with-tests tests/requirements.txt"
PAGES = ".ci/environment.py .venv/with-pages helpers/tooling/pages/requirements.txt"
ANEW = {
    ".ci/constraints.txt": [FIRST, TESTS, PAGES],
    "requirements.txt": [FIRST, TESTS, PAGES],
    "tests/requirements.txt": [TESTS],
    "helpers/tooling/pages/requirements.txt": [PAGES],
}
"""What is installed when a list has changed."""
REFUSED = {
    "make run devcie=cuda": "make run does not read devcie",
    "TORCH=2.15.0 make outputs": "make outputs does not read TORCH",
    "make nbval LAX=yes": "LAX is 1 or not given",
}


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Run commands in a checkout in a folder with spaces; get how they end, and the log."""
    folder = tmp_path / "a folder with spaces"
    for name in ("Makefile", *ANEW):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "fake").write_text(FAKE_PYTHON, "utf-8")
    (folder / "fake").chmod(0o755)
    monkeypatch.chdir(folder)

    def run(command):
        (folder / "log").write_text("", "utf-8")
        ended = subprocess.run(
            f"{command} PYTHON=./fake",
            shell=True,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            encoding="utf-8",
        )
        return ended, (folder / "log").read_text("utf-8").splitlines()

    return run


def test_help_lists_every_target_and_variable(make):
    ended, _ = make("make")
    shown = ended.stdout
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.search("PHONY: (.*)", makefile)[1].split()
    assert re.findall(r"(?m)^  ([a-z-]+) ", shown) == targets
    used = set(re.findall(r"\$\(([A-Z]+)\)", makefile)) - {"MAKECMDGOALS"}
    assert used == set(re.findall(r"(?m)^  ([A-Z]+)=", shown))


def test_variables_reach_the_commands_or_are_refused(make):
    for command, said in REFUSED.items():
        refused, log = make(command)
        assert refused.returncode == 2
        assert said in refused.stderr
        assert refused.stderr.count("\n") == 1
        assert log == [], "nothing ran"
    _, log = make(
        "PYTHONOPTIMIZE=1 make run 'LESSON=3 4' DEVICE=cuda:1 PARAMS=seed=1 OMP_NUM_THREADS=2"
    )
    assert log[-1] == "-m helpers.tooling.run 3 4 --device cuda:1 --params seed=1 2"


def test_the_path_of_an_interpreter_may_have_a_space(make):
    Path("my tools").mkdir()
    shutil.copy("fake", "my tools/fake")
    _, log = make("make lint PYTHON='./my tools/fake' #")
    assert log[0] == ".ci/environment.py .venv/made-by-.-my-tools-fake requirements.txt"


def test_each_list_is_installed_when_it_is_first_needed_and_when_it_changes(make):
    run, lint, html = "-m helpers.tooling.run", LINT, "-m helpers.tooling.pages"
    _, log = make("make run")
    assert [log[0], log[1][: len(run)]] == [FIRST, run]
    _, log = make("make lint")
    assert log == [TESTS, *lint]
    _, log = make("make html")
    assert log == [PAGES, html]
    _, log = make("make lint html")
    assert log == [*lint, html], "all is there"
    for name, installed in ANEW.items():
        for each in ANEW:
            os.utime(each, (10, 10))
        for mark in Path(".venv").glob("*-*"):
            os.utime(mark, (20, 20))
        os.utime(name, (30, 30))
        _, log = make("make lint html")
        assert set(log) == {*installed, *lint, html}, name


def test_a_clone_with_autocrlf_has_lines_that_make_and_bash_can_read(tmp_path):
    there, clone = tmp_path / "there", tmp_path / "clone"
    (there / ".ci").mkdir(parents=True)
    names = ["Makefile", ".ci/run", ".gitattributes"]
    for name in names:
        shutil.copy(ROOT / name, there / name)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q", there], check=True)
    subprocess.run([*git, "-C", there, "add", *names], check=True)
    subprocess.run([*git, "-C", there, "commit", "-q", "-m", "a"], check=True)
    subprocess.run([*git, "-c", "core.autocrlf=true", "clone", "-q", there, clone], check=True)
    for name in names:
        assert b"\r" not in (clone / name).read_bytes(), name
