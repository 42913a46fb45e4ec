"""The Makefile: help that is true, variables that exist, and a .venv that is complete."""

import os
import re
import shutil
import subprocess

import pytest
import torch

from helpers.tooling import pins
from tests.tooling.samples import ROOT

# Stands in for Python: makes a .venv of itself, logs what else it is told to do, and fails to
# install as long as there is a file `offline`.
FAKE_PYTHON = """\
#!/bin/sh
case "$*" in
  "-m venv .venv-jax") mkdir -p .venv-jax/bin; cp "$0" .venv-jax/bin/python;;
  "-m venv --clear .venv") rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python;;
  "-m venv --clear build/wild-env") mkdir -p build/wild-env/bin; cp "$0" build/wild-env/bin/python;;
  "-m pip install"*) test ! -e offline || exit 1;;
  "-m helpers.tooling.lesson.files"*) echo notebooks/01_a.ipynb notebooks/02_b.ipynb;;
esac
echo "$*" >> log
"""


LISTS = ("requirements.txt", "tests/requirements.txt")
ANEW = ["-m venv --clear .venv"]
ANEW += [f"-m pip install {' '.join(f'-r {name}' for name in LISTS)} -c .ci/constraints.txt"]


@pytest.fixture
def checkout(tmp_path):
    """Lay out a checkout in a folder with spaces in its name, with a stand-in for Python."""
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    for name in ("Makefile", *LISTS, ".ci/constraints.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name in ("fake", "other"):
        (folder / name).write_text(FAKE_PYTHON)
        (folder / name).chmod(0o755)
    return folder


def make(folder, *arguments):
    """Run make as a person would, and not as a part of the make that may run these tests."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


def log(folder):
    """Read and empty the log of the stand-in."""
    file = folder / "log"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return [line for line in lines if not line.startswith("-c")]


def test_help_is_the_default_and_lists_every_target(checkout):
    shown = make(checkout)
    assert shown.returncode == 0
    listed = re.findall(r"^  ([a-z-]+) {2,}\w", shown.stdout, re.M)
    makefile = (checkout / "Makefile").read_text()
    targets = re.findall(r"^([\w-]+):(?!=)", makefile, re.M)
    assert listed == targets
    assert set(
        re.search(r"\.PHONY: ((?:.*\\\n)*.*)", makefile)[1].replace("\\", "").split()
    ) == set(targets)
    assert set(targets) >= {
        "help",
        "run",
        "test",
        "test-all",
        "lab",
        "nbval",
        "outputs",
        "lint",
        "clean",
    }
    variables = re.findall(r"^(\w+) \?=", makefile, re.M)
    assert sorted(re.findall(r"^  ([A-Z_]+)=", shown.stdout, re.M)) == sorted(variables)
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("target", "given", "sentence"),
    [
        (
            "run",
            "devcie=cuda",
            "there is no variable devcie: choose among PYTHON DEVICE LESSON PARAMS",
        ),
        ("nbval", "LAX=yes", "LAX and TIMINGS are 1 or not given"),
    ],
)
def test_variable_that_will_not_do_is_refused(target, given, sentence, checkout):
    refused = make(checkout, target, "PYTHON=./fake", given)
    assert refused.returncode == 2
    assert sentence in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert log(checkout) == []


def test_commands(checkout):
    def commands(*arguments):
        assert make(checkout, *arguments, "PYTHON=./fake").returncode == 0
        return log(checkout)

    lint = ["-m ruff check", "-m ruff format --check"]
    assert commands("run") == [*ANEW, "-m helpers.tooling.run --device auto --params"]
    assert commands("run", "LESSON=3 4", "DEVICE=cuda:1", "PARAMS=seed=1 batch_size=2") == [
        "-m helpers.tooling.run 3 4 --device cuda:1 --params seed=1 batch_size=2"
    ]
    assert commands("lint") == lint
    parallel = "-m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder"
    assert commands("test") == [*lint, f"{parallel} -m not whole"]
    assert commands("test-all") == [*lint, f"{parallel} -m not whole", f"{parallel} -m whole"]
    chosen = "notebooks/01_a.ipynb notebooks/02_b.ipynb"
    assert commands("nbval") == ["-m helpers.tooling.lesson.files", f"-m pytest {chosen}"]
    assert commands("nbval", "LAX=1", "LESSON=1 2") == [
        "-m helpers.tooling.lesson.files 1 2",
        f"-m pytest --nbval-lax {chosen}",
    ]
    picture = "-m helpers.tooling.picture"
    assert commands("outputs", "LESSON=03") == ["-m helpers.tooling.outputs 03", picture]
    assert commands("outputs", "TIMINGS=1") == ["-m helpers.tooling.outputs --timings", picture]
    assert commands("bench", "DEVICE=cpu") == ["-m helpers.tooling.bench --device cpu"]
    assert commands("colab") == ["-m helpers.tooling.colab"]
    assert commands("colab", "LESSON=3", "REPO=ada/gradients") == [
        "-m helpers.tooling.colab 3 --repo=ada/gradients"
    ]
    assert commands("colab", "REPO=-x y") == ["-m helpers.tooling.colab --repo=-x y"]
    assert commands("report") == ["-m helpers.tooling.report"]
    assert commands("bundle") == ["-m helpers.tooling.bundle --python-version 3.12"]
    assert commands("bundle", "PYTHON_VERSION=3.13", "HAVE=a b.txt") == [
        "-m helpers.tooling.bundle --python-version 3.13 --have a b.txt"
    ]
    assert commands("student", "LESSON=1 2") == ["-m helpers.tooling.student 1 2"]
    assert commands("html") == ["-m helpers.tooling.pages"]
    assert commands("html", "REPO=ada/gradients") == ["-m helpers.tooling.pages"]
    assert commands("lab") == ["-m jupyter lab notebooks"]


def test_peers_leave_torch_alone(checkout):
    assert make(checkout, "peers", "PYTHON=./fake").returncode == 0
    *_, beside, check, environment, jax = log(checkout)
    assert beside.startswith("-m pip install --no-deps backpack-for-pytorch==")
    assert check == "-m helpers.tooling.pins torch"
    assert environment == "-m venv .venv-jax"
    assert jax.startswith("-m pip install jax==")
    assert "torch" not in jax


def test_wild_has_an_environment_of_its_own_with_the_pinned_torch(checkout):
    for name in ("requirements.txt", "alone.txt"):
        (checkout / "tests" / "wild").mkdir(exist_ok=True)
        shutil.copy(ROOT / "tests" / "wild" / name, checkout / "tests" / "wild" / name)
    assert make(checkout, "wild", "PYTHON=./fake", "MODELS=timm swin").returncode == 0
    environment, libraries, alone, check, run = log(checkout)
    assert environment == "-m venv --clear build/wild-env"
    assert libraries == (
        "-m pip install torch numpy -r tests/wild/requirements.txt -c .ci/constraints.txt"
    )
    assert alone == "-m pip install --no-deps -r tests/wild/alone.txt"
    assert check == "-m helpers.tooling.pins torch"
    assert run == "-m helpers.tooling.wild timm swin"
    assert make(checkout, "wild", "PYTHON=./fake").returncode == 0
    assert log(checkout) == ["-m helpers.tooling.wild"]
    assert not (checkout / ".venv").exists()


def test_what_asks_for_torchvision_is_installed_without_it():
    lists = [
        (ROOT / "tests" / "wild" / name).read_text() for name in ("requirements.txt", "alone.txt")
    ]
    ordinary, alone = map(pins.read, lists)
    assert {"timm", "vit-pytorch"} <= set(alone)
    assert not {"timm", "vit-pytorch", "torchvision", "torch"} & set(ordinary)


def test_pins_are_compared_with_what_is_installed():
    installed = torch.__version__.partition("+")[0]
    assert pins.findings(["torch"], f"torch=={installed}\n") == []
    (wrong,) = pins.findings(["torch"], "torch==1.0.0\n")
    assert wrong.startswith(f"torch {installed} is installed, and 1.0.0 is pinned")
    assert pins.findings(["torch"], "numpy==1\n") == ["no pin of torch"]


def test_lock_is_what_pip_brings(checkout):
    """From a stand-in's `pip freeze`: without builds, and without what torch for CUDA pins."""
    freeze = "a==1.0\npip==1\nnvidia-cublas==13.1\ntorch==2.13.0+cpu\ntriton==3.7.1"
    python = checkout / "fake"
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in *venv*) mkdir -p build/lock-env/bin; cp "$0" build/lock-env/bin/python;; '
        f'*freeze*) echo "{freeze}";; *) echo "$*" >> log;; esac\n'
    )
    assert make(checkout, "lock", "PYTHON=./fake").returncode == 0
    assert log(checkout) == [ANEW[1].partition(" -c")[0]]
    lock = (checkout / ".ci" / "constraints.txt").read_text()
    assert pins.read(lock) == {"a": "1.0", "torch": "2.13.0"}
    assert lock.startswith((ROOT / ".ci" / "constraints.txt").read_text().partition("\n")[0])


def test_clean_removes_what_was_generated(checkout):
    generated = ["build/cpu", "helpers/__pycache__", "notebooks/.ipynb_checkpoints", ".ruff_cache"]
    stays = ["tests/a test", ".venv/lib/__pycache__"]
    for folder in generated + stays:
        (checkout / folder).mkdir(parents=True)
    assert make(checkout, "clean", "PYTHON=./fake").returncode == 0
    assert [folder for folder in generated if (checkout / folder).exists()] == []
    assert [folder for folder in stays if not (checkout / folder).exists()] == []
    assert log(checkout) == []


def test_venv_is_done_only_when_it_is_complete(checkout):
    lint = ["-m ruff check", "-m ruff format --check"]
    (checkout / "offline").touch()
    assert make(checkout, "lint", "PYTHON=./fake").returncode == 2
    assert log(checkout) == ANEW[:1]
    (checkout / "offline").unlink()
    assert make(checkout, "lint", "PYTHON=./fake").returncode == 0
    assert log(checkout) == ANEW + lint
    assert make(checkout, "lint", "PYTHON=./fake").returncode == 0
    assert log(checkout) == lint
    assert make(checkout, "lint", "PYTHON=./other").returncode == 0
    assert log(checkout) == ANEW + lint
    for later, name in enumerate((*LISTS, ".ci/constraints.txt"), 2**32):
        os.utime(checkout / ".venv" / "made-by-.-other", (later - 1, later - 1))
        os.utime(checkout / name, (later, later))
        assert make(checkout, "lint", "PYTHON=./other").returncode == 0
        assert log(checkout) == ANEW[1:] + lint


def test_ci_calls_make_and_nothing_else(checkout):
    shutil.copy(ROOT / ".ci" / "run", checkout / ".ci" / "run")
    (checkout / "bin").mkdir()
    fake_make = checkout / "bin" / "make"
    fake_make.write_text('#!/bin/sh\necho "$PWD: make $*"\nexit 7\n')
    fake_make.chmod(0o755)
    environment = {"PATH": f"{checkout / 'bin'}:{os.environ['PATH']}"}
    called = subprocess.run(
        [checkout / ".ci" / "run"], cwd="/", env=environment, capture_output=True, text=True
    )
    assert called.stdout == f"{checkout}: make test-all\n"
    assert called.returncode == 7


@pytest.mark.parametrize(
    "arguments",
    [
        ("nbval", "DEVICE=cuda"),
        ("test", "LESSON=02"),
        ("test-all", "LESSON=02"),
        ("run", "TIMINGS=1"),
        ("bench", "LESSON=07"),
        ("student", "REPO=a/b"),
        ("html", "LESSON=03"),
        ("report", "LESSON=01"),
        ("wild", "LESSON=01"),
        ("bench", "MODELS=timm"),
    ],
)
def test_variable_that_the_target_does_not_read_is_refused(checkout, arguments):
    done = make(checkout, *arguments, "PYTHON=./fake")
    target, setting = arguments
    assert done.returncode != 0
    assert f"make {target} does not read {setting.partition('=')[0]}" in done.stderr
    assert log(checkout) == []


def test_signal_to_make_reaches_what_runs():
    """Without `exec` there is a shell in between, which ends and leaves Python running."""
    assert "exec .venv/bin/python -m helpers.tooling.run" in make(ROOT, "-n", "run").stdout
    assert "exec .venv/bin/python -m pytest" in make(ROOT, "-n", "nbval").stdout
