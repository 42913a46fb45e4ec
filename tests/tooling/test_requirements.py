"""What is installed: lists name what is used, nothing else, and the lock pins what they bring."""

import ast
import re
import sys
from importlib import metadata

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from helpers.tooling.lesson import files
from tests.support.samples import ROOT

OPTIONAL = {"backpack", "jax", "trak", "torchvision"}
"""What is imported only where it is found, or has a stand-in in tests."""
RUN = {
    "jupyterlab": ("Makefile", "-m jupyter lab"),
    "nbval": (".pytest.ini", "--nbval"),
    "pytest-xdist": ("Makefile", "--numprocesses"),
    "ruff": ("Makefile", "-m ruff"),
    "mypy": ("Makefile", "-m mypy"),
    "myst-nb": ("helpers/tooling/pages/conf.py", "myst_nb"),
    "sphinx-book-theme": ("helpers/tooling/pages/conf.py", "sphinx_book_theme"),
    "sphinx-copybutton": ("helpers/tooling/pages/conf.py", "sphinx_copybutton"),
}
"""What no file imports: the file that runs it, and how."""
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
"""Other systems bring a few packages more; those that are installed here are looked at."""


def read(name: str) -> dict[str, set[str]]:
    """Read the pins of a list: `{name: versions}`, of which a lock has some for other Pythons."""
    pins = {}
    for package, version in re.findall(
        r"(?m)^([\w.-]+)==([^\s#;]+)", (ROOT / name).read_text("utf-8")
    ):
        pins.setdefault(canonicalize_name(package), set()).add(version)
    return pins


FIRST = read("requirements.txt")
PAGES = read("helpers/tooling/pages/requirements.txt")
TESTS = read("tests/requirements.txt")


def imported(source: str) -> set[str]:
    """Return the packages that some code imports."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for each in node.names:
                names.add(each.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.partition(".")[0])
    return names


PUBLISHER = "helpers/tooling/pages"


def packages_of(*folders: str) -> set[str]:
    """Return the packages that the code in some folders imports, by the names of lists."""
    modules = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            if folder == PUBLISHER or PUBLISHER not in path.as_posix():
                modules |= imported(path.read_text("utf-8"))
        for path in (ROOT / folder).rglob("*.ipynb"):
            for cell in files.code_cells(files.read(path)):
                modules |= imported(cell.source)
    providers = metadata.packages_distributions()
    names = set()
    for module in modules - sys.stdlib_module_names - {"helpers", "tests"} - OPTIONAL:
        assert module in providers, f"{module} is not installed"
        names |= set(map(canonicalize_name, providers[module]))
    return names


def test_what_is_imported_is_listed():
    assert packages_of("helpers", "notebooks") <= FIRST.keys()
    assert packages_of(PUBLISHER) <= FIRST.keys() | PAGES.keys()
    assert packages_of("tests") <= FIRST.keys() | PAGES.keys() | TESTS.keys()


def test_what_is_listed_is_used():
    for name, (file, command) in RUN.items():
        assert command in (ROOT / file).read_text("utf-8"), name
    assert FIRST.keys() <= packages_of("helpers", "notebooks") | RUN.keys()
    assert PAGES.keys() <= packages_of(PUBLISHER) | RUN.keys()
    imported_if_there = {"traker"}
    assert TESTS.keys() - imported_if_there <= packages_of("tests") | RUN.keys()


@pytest.mark.skipif(
    torch.__version__.partition("+")[0] not in FIRST["torch"],
    reason="another torch brings other versions",
)
def test_lock_pins_all_that_is_installed():
    """If not: `make lock`, or install what the lists say: remove .venv, and make will."""
    pinned = read(".ci/constraints.txt")
    seen = set()
    todo = [(name, "") for name in FIRST | PAGES | TESTS]  # a package, and one of its extras
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen or re.match("nvidia|cuda|triton", name):
            continue
        seen.add((name, extra))
        build, _, _ = metadata.version(name).partition("+")  # without +cpu
        assert build in pinned.get(name, ()), name
        for needed in map(Requirement, metadata.requires(name) or []):
            if needed.marker is None or needed.marker.evaluate(LINUX | {"extra": extra}):
                for own in ("", *needed.extras):
                    todo.append((canonicalize_name(needed.name), own))
