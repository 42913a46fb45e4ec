"""The Makefile: help that is true, variables that exist, and a .venv that is complete."""

import os
import re
import shlex
import shutil
import subprocess

import pytest

from tests.tooling.samples import ROOT

# Stands in for Python: makes an environment of itself, logs what it is told to do, has no peers to
# import, and fails to install as long as there is a file `offline`.
FAKE_PYTHON = """\
#!/bin/sh
case "$*" in
  "-c import backpack"|"-c import jax") test ! -e no-peers || exit 1;;
  "-m venv .venv-jax") mkdir -p .venv-jax/bin; cp "$0" .venv-jax/bin/python;;
  .ci/environment.py*) echo "$*" >> log; test ! -e offline || exit 1
    mkdir -p "${2%/*}/bin"; cp "$0" "${2%/*}/bin/python"; touch "$2"; exit;;
  "-m pip install"*) test ! -e offline || exit 1;;
  "-m helpers.tooling.lesson.files"*) echo notebooks/01_a.ipynb notebooks/02_b.ipynb;;
esac
echo "$*" >> log
"""


LISTS = ("requirements.txt", "tests/requirements.txt")
ANEW = [".ci/environment.py .venv/made-by-.-fake"]
LINT = ["-m ruff check", "-m ruff format --check"]


@pytest.fixture
def checkout(tmp_path):
    """Lay out a checkout in a folder with spaces in its name, with a stand-in for Python."""
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    for name in ("Makefile", *LISTS, ".ci/constraints.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "fake").write_text(FAKE_PYTHON)
    (folder / "fake").chmod(0o755)
    return folder


def make(folder, *arguments):
    """Run make as a person would, and not as a part of the make that may run these tests."""
    given = {"cwd": folder, "env": {"PATH": os.environ["PATH"]}}
    return subprocess.run(["make", *arguments], **given, capture_output=True, text=True)


def log(folder):
    """Read and empty the log of the stand-in."""
    (folder / "log").touch()
    lines = (folder / "log").read_text().splitlines()
    (folder / "log").unlink()
    return [line for line in lines if not line.startswith("-c")]


def test_help_is_the_default_and_lists_every_target(checkout):
    shown = make(checkout)
    assert shown.returncode == 0
    listed = re.findall(r"^  ([a-z-]+) +\w", shown.stdout, re.M)
    makefile = (checkout / "Makefile").read_text()
    targets = re.findall(r"^([\w-]+):(?!=)", makefile, re.M)
    assert set(targets) - set(listed) == {"lock"}
    assert len(listed) <= 16
    assert set(re.search(r"\.PHONY: (.*)", makefile)[1].split()) == set(targets)
    variables = re.findall(r"^(\w+) \?=", makefile, re.M)
    assert sorted(re.findall(r"^  ([A-Z_]+)=", shown.stdout, re.M)) == sorted(variables)
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("target", "given", "sentence"),
    [
        ("run", "devcie=cuda", "there is no variable devcie: choose among PYTHON DEVICE LESSON"),
        ("nbval", "LAX=yes", "LAX, TIMINGS, LOOKED and NBGRADER are 1 or not given"),
        ("test", "LESSON=02", "make test does not read LESSON"),
        ("bench", "LESSON=07", "make bench does not read LESSON"),
    ],
)
def test_variable_that_will_not_do_is_refused(target, given, sentence, checkout):
    refused = make(checkout, target, "PYTHON=./fake", given)
    assert refused.returncode == 2
    assert sentence in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert log(checkout) == []


CHOSEN = "notebooks/01_a.ipynb notebooks/02_b.ipynb"
COMMANDS = {
    "run 'LESSON=3 4' DEVICE=cuda:1 'PARAMS=seed=1 batch_size=2'": [
        "-m helpers.tooling.run 3 4 --device cuda:1 --params seed=1 batch_size=2"
    ],
    "nbval LAX=1 'LESSON=1 2'": [
        "-m helpers.tooling.lesson.files 1 2",
        f"-m pytest --nbval-lax {CHOSEN}",
    ],
    "outputs LOOKED=1": ["-m helpers.tooling.outputs --looked", "-m helpers.tooling.picture"],
    "outputs TIMINGS=1": ["-m helpers.tooling.outputs --timings", "-m helpers.tooling.picture"],
    "slides LESSON=3": ["-m helpers.tooling.slides 3"],
    "colab LESSON=3 'REPO=-x y'": ["-m helpers.tooling.colab 3 --repo=-x y"],
    "grade LESSON=2 'SUBMISSIONS=a class' HIDDEN=tests": [
        "-m helpers.tooling.grade 2 a class --hidden tests"
    ],
    "nbval TORCH=2.15.0": [
        ".ci/environment.py build/torch-2.15.0/made-by-.-fake 2.15.0",
        "-m helpers.tooling.lesson.files",
        f"-m pytest --nbval-lax --tried=make nbval {CHOSEN}",
    ],
    "nbval LESSON=3 TORCH=2.13.0": [
        ".ci/environment.py build/torch-2.13.0/made-by-.-fake 2.13.0",
        "-m helpers.tooling.lesson.files 3",
        f"-m pytest {CHOSEN}",
    ],
}


def test_variables_reach_the_commands(checkout):
    make(checkout, "lint", "PYTHON=./fake")
    assert log(checkout) == [*ANEW, *LINT]
    for given, commands in COMMANDS.items():
        assert make(checkout, *shlex.split(given), "PYTHON=./fake").returncode == 0
        assert log(checkout) == commands, given


def test_bench_installs_its_peers_where_it_can(checkout):
    """Without their dependencies, or elsewhere: no other torch comes with them."""
    bench = "-m helpers.tooling.bench --device cpu"
    given = ("bench", "DEVICE=cpu", "PYTHON=./fake")
    (checkout / "no-peers").touch()
    assert make(checkout, *given).stderr == ""
    *_, backpack, environment, jax, measured = log(checkout)
    assert backpack.startswith("-m pip install --quiet --no-deps backpack-for-pytorch==")
    assert environment == "-m venv .venv-jax"
    assert jax.startswith("-m pip install --quiet jax==")
    assert "torch" not in jax
    assert measured == bench
    (checkout / "offline").touch()
    offline = make(checkout, *given)
    said = [f"{each} could not be installed, and is not measured" for each in ("BackPACK", "JAX")]
    assert offline.stderr.splitlines() == said
    assert (offline.returncode, log(checkout)) == (0, [environment, bench])
    (checkout / "no-peers").unlink()
    assert make(checkout, *given).stderr == ""
    assert log(checkout) == [bench]


def test_clean_removes_what_was_generated(checkout):
    generated = ["build/cpu", "helpers/__pycache__", "notebooks/.ipynb_checkpoints", ".ruff_cache"]
    stays = ["tests/a test", ".venv/lib/__pycache__"]
    for folder in generated + stays:
        (checkout / folder).mkdir(parents=True)
    assert make(checkout, "clean", "PYTHON=./fake").returncode == 0
    assert [folder for folder in generated if (checkout / folder).exists()] == []
    assert [folder for folder in stays if not (checkout / folder).exists()] == []
    assert log(checkout) == []


def test_environment_is_made_first_and_again_when_a_list_changed(checkout):
    (checkout / "offline").touch()
    assert make(checkout, "lint", "PYTHON=./fake").returncode == 2
    assert log(checkout) == ANEW
    (checkout / "offline").unlink()
    for done in (ANEW + LINT, LINT):
        assert make(checkout, "lint", "PYTHON=./fake").returncode == 0
        assert log(checkout) == done
    for later, name in enumerate((*LISTS, ".ci/constraints.txt"), 2**32):
        os.utime(checkout / ".venv" / "made-by-.-fake", (later - 1, later - 1))
        os.utime(checkout / name, (later, later))
        assert make(checkout, "lint", "PYTHON=./fake").returncode == 0
        assert log(checkout) == ANEW + LINT
