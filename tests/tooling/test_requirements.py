"""What is installed: the lists name all that is imported, and the lock pins all that they bring."""

import ast
import re
import sys
from importlib import metadata

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from helpers.tooling.lesson import files
from tests.tooling.samples import ROOT

OPTIONAL = {"backpack", "jax", "trak", "torchvision"}
"""What is imported only where it is found, or has a stand-in in tests."""
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
"""Other systems bring a few packages more; the lock is made on this one."""


def read(name: str) -> dict[str, str]:
    """Read the pins of a list: `{name: version}`."""
    pins = re.findall(r"(?m)^([\w.-]+)==([^\s#]+)", (ROOT / name).read_text("utf-8"))
    return {canonicalize_name(name): pinned for name, pinned in pins}


PINS = read("requirements.txt")
BOTH = PINS | read("tests/requirements.txt")


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


def test_what_is_imported_is_listed():
    packages = metadata.packages_distributions()
    for folder, pins in (("helpers", PINS), ("notebooks", PINS), ("tests", BOTH)):
        names = set()
        for path in (ROOT / folder).rglob("*.py"):
            names |= imported(path.read_text("utf-8"))
        for path in (ROOT / folder).rglob("*.ipynb"):
            for cell in files.code_cells(files.read(path)):
                names |= imported(cell.source)
        for name in names - sys.stdlib_module_names - {"helpers", "tests"} - OPTIONAL:
            providers = map(canonicalize_name, packages.get(name, []))
            assert pins.keys() & set(providers), name


@pytest.mark.skipif(
    torch.__version__.partition("+")[0] != PINS["torch"],
    reason="another torch brings other versions",
)
def test_lock_pins_all_that_is_installed():
    """If not: `make lock`, or install what the lists say: remove .venv, and make will."""
    pinned = read(".ci/constraints.txt")
    seen = set()
    todo = [(name, "") for name in BOTH]  # a package, and one of its extras
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen or re.match("nvidia|cuda|triton", name):
            continue
        seen.add((name, extra))
        build, _, _ = metadata.version(name).partition("+")  # without +cpu
        assert pinned.get(name) == build, name
        for needed in map(Requirement, metadata.requires(name) or []):
            if needed.marker is None or needed.marker.evaluate(LINUX | {"extra": extra}):
                for own in ("", *needed.extras):
                    todo.append((canonicalize_name(needed.name), own))
