"""The Makefile: help that is true, variables that reach what reads them, a .venv made first."""

import os
import re
import shutil
import subprocess

import pytest

from tests.tooling.samples import ROOT

# Stands in for Python: makes an environment of itself, and logs what it is told to do.
FAKE_PYTHON = """\
#!/bin/sh
case "$*" in
  .ci/environment.py*) mkdir -p "${2%/*}/bin"; cp "$0" "${2%/*}/bin/python"; touch "$2";;
esac
echo "$*" $OMP_NUM_THREADS $PIP_EXTRA_INDEX_URL >> log
"""
LISTS = ("requirements.txt", "tests/requirements.txt", ".ci/constraints.txt")
MARK = ".venv/made-by-.-fake"
LINT = ["-m ruff check", "-m ruff format --check"]
PARALLEL = "--numprocesses 2 --dist loadfile --no-loadscope-reorder -m not whole build/tried tests"
COMMANDS = {
    "make run 'LESSON=3 4' DEVICE=cuda:1 'PARAMS=seed=1 batch_size=2'": (
        "-m helpers.tooling.run 3 4 --device cuda:1 --params seed=1 batch_size=2"
    ),
    "make colab 'REPO=-x y'": "-m helpers.tooling.colab --repo=-x y",
    "make test OMP_NUM_THREADS=2 PIP_EXTRA_INDEX_URL=there": f"-m pytest {PARALLEL} 2 there",
    "TORCH=2.15.0 make test": f"-m pytest --nbval-lax {PARALLEL} 1",
    "make nbval LAX=1 LESSON=1": "-m pytest --nbval-lax build/tried",
}
REFUSED = {
    "make run devcie=cuda": "make run does not read devcie",
    "TORCH=2.15.0 make outputs": "make outputs does not read TORCH",
    "make nbval LAX=yes": "LAX is 1 or not given",
}


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Run commands in a checkout in a folder with spaces; get how they end, and the log."""
    folder = tmp_path / "a folder with spaces"
    for name in ("Makefile", *LISTS):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "fake").write_text(FAKE_PYTHON)
    (folder / "fake").chmod(0o755)
    monkeypatch.chdir(folder)

    def run(command):
        (folder / "log").write_text("")
        given = {"env": {"PATH": os.environ["PATH"]}, "capture_output": True}
        ended = subprocess.run(f"{command} PYTHON=./fake", shell=True, text=True, **given)
        return ended, (folder / "log").read_text().splitlines()

    return run


def test_help_lists_every_target_and_variable(make):
    shown, makefile = make("make")[0].stdout, (ROOT / "Makefile").read_text()
    targets = re.search("PHONY: (.*)", makefile)[1].split()
    assert re.findall(r"(?m)^  ([a-z-]+) ", shown) == targets
    used = {*re.findall(r"\$\(([A-Z]+)\)", makefile)} - {"MAKECMDGOALS"}
    assert used == {*re.findall(r"(?m)^  ([A-Z]+)=", shown)}


def test_variables_reach_the_commands_or_are_refused(make):
    for command, said in REFUSED.items():
        refused, log = make(command)
        assert (refused.returncode, refused.stderr.count("\n"), log) == (2, 1, [])
        assert said in refused.stderr
    assert {command: make(command)[1][-1] for command in COMMANDS} == COMMANDS


def test_the_environment_is_brought_up_to_each_list_that_changed(make):
    anew = f".ci/environment.py {MARK}"
    assert [make("make lint")[1] for _ in "12"] == [[anew, *LINT], LINT]
    for later, name in enumerate(LISTS, 2**32):
        os.utime(MARK, (later - 1, later - 1))
        os.utime(name, (later, later))
        assert make("make lint")[1] == [anew, *LINT]
