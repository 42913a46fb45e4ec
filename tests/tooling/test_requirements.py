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
    pins = re.findall(r"(?m)^([\w.-]+)==([^\s#]+)", (ROOT / name).read_text())
    return {canonicalize_name(name): pinned for name, pinned in pins}


PINS = read("requirements.txt")
BOTH = PINS | read("tests/requirements.txt")


def test_what_is_imported_is_listed():
    packages = metadata.packages_distributions()
    for folder, pins in (("helpers", PINS), ("notebooks", PINS), ("tests", BOTH)):
        sources = [path.read_text() for path in (ROOT / folder).rglob("*.py")]
        for path in (ROOT / folder).rglob("*.ipynb"):
            sources += [cell.source for cell in files.code_cells(files.read(path))]
        names = set()
        for node in (node for source in sources for node in ast.walk(ast.parse(source))):
            if isinstance(node, ast.Import):
                names |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module.partition(".")[0])
        for name in names - sys.stdlib_module_names - {"helpers", "tests"} - OPTIONAL:
            assert {*map(canonicalize_name, packages.get(name, []))} & pins.keys(), name


@pytest.mark.skipif(
    torch.__version__.partition("+")[0] != PINS["torch"],
    reason="another torch brings other versions",
)
def test_lock_pins_all_that_is_installed():
    """If not: `make lock`, or install what the lists say: remove .venv, and make will."""
    found, todo = set(), [(name, "") for name in BOTH]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in found or re.match("nvidia|cuda|triton", name):
            continue
        found.add((name, extra))
        for needed in map(Requirement, metadata.requires(name) or []):
            if needed.marker is None or needed.marker.evaluate({**LINUX, "extra": extra}):
                todo += [(canonicalize_name(needed.name), own) for own in ("", *needed.extras)]
    builds = {name: metadata.version(name).partition("+")[0] for name, _ in found}  # no +cpu
    assert builds.items() <= read(".ci/constraints.txt").items()
