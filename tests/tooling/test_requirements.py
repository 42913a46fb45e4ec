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

LESSON_LIST = (ROOT / "requirements.txt").read_text()
TEST_LIST = (ROOT / "tests" / "requirements.txt").read_text()
LOCK = (ROOT / ".ci" / "constraints.txt").read_text()
OPTIONAL = {"backpack", "jax", "trak", "torchvision"}
"""What is imported only where it is found, or has a stand-in in tests."""
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
"""Other systems bring a few packages more; the lock is made on this one."""


def read(requirements: str) -> dict[str, str]:
    """Read the pins of a list: `{name: version}`."""
    pins = re.findall(r"(?m)^([\w.-]+)==([^\s#]+)", requirements)
    return {canonicalize_name(name): pinned for name, pinned in pins}


def imported(folder: str) -> set[str]:
    """List what modules and lessons import from outside the standard library and this folder."""
    sources = [path.read_text() for path in (ROOT / folder).rglob("*.py")]
    for path in (ROOT / folder).rglob("*.ipynb"):
        sources += [cell.source for cell in files.code_cells(files.read(path))]
    names = set()
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.Import):
            names |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"helpers", "tests"}


def brought(listed: str) -> set[str]:
    """List the installed packages that a list brings."""
    found, todo = set(), [(name, "") for name in read(listed)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) not in found:
            found.add((name, extra))
            for needed in map(Requirement, metadata.requires(name) or []):
                if needed.marker is None or needed.marker.evaluate({**LINUX, "extra": extra}):
                    todo += [(canonicalize_name(needed.name), own) for own in ("", *needed.extras)]
    return {name for name, _ in found}


@pytest.mark.parametrize(
    ("folder", "lists"),
    [("helpers", LESSON_LIST), ("notebooks", LESSON_LIST), ("tests", LESSON_LIST + TEST_LIST)],
)
def test_what_is_imported_is_listed(folder, lists):
    packages, listed = metadata.packages_distributions(), read(lists).keys()
    unlisted = {
        name
        for name in imported(folder) - OPTIONAL
        if not listed & set(map(canonicalize_name, packages.get(name, [])))
    }
    assert unlisted == set()


@pytest.mark.skipif(
    torch.__version__.partition("+")[0] != read(LESSON_LIST)["torch"],
    reason="another torch brings other versions",
)
@pytest.mark.parametrize("listed", [LESSON_LIST, TEST_LIST], ids=["lessons", "tests"])
def test_lock_pins_all_that_is_installed(listed):
    """If not: `make lock`, or install what the lists say: remove .venv, and make will."""
    names = {name for name in brought(listed) if not re.match("nvidia|cuda|triton", name)}
    builds = {name: metadata.version(name).partition("+")[0] for name in names}  # no +cpu
    assert builds.items() <= read(LOCK).items()
