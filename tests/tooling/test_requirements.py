"""What is installed: the lists name all that is imported, and the lock pins all that they bring."""

import ast
import re
import shutil
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from helpers.tooling import student
from helpers.tooling.lesson import files
from tests.tooling.samples import LESSONS, ROOT

LESSON_LIST = (ROOT / "requirements.txt").read_text()
TEST_LIST = (ROOT / "tests" / "requirements.txt").read_text()
LOCK = (ROOT / ".ci" / "constraints.txt").read_text()
PEERS = {"backpack", "jax"}
"""What is imported only where it is measured, once `make bench` has installed it."""
NOT_NEEDED = PEERS | {"trak"}
"""What a lesson imports only where it finds it installed."""
STOOD_IN_FOR = {"torchvision"}
"""What is never installed: tests/support/libraries.py puts an empty one in its place."""
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
"""Other systems bring a few packages more; the lock is made on this one."""


def read(requirements: str) -> dict[str, str]:
    """Read the pins of a list: `{name: version}`."""
    pins = re.findall(r"^([\w.-]+)==([^\s#]+)", requirements, re.MULTILINE)
    return {plain(name): pinned for name, pinned in pins}


def plain(name: str) -> str:
    """Write a package's name as all its spellings are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def brought(names: Iterable[str]) -> set[str]:
    """List the installed packages that these bring, themselves included."""
    found, todo = set(), [(name, "") for name in names]
    while todo:
        name, extra = todo.pop()
        if (plain(name), extra) in found:
            continue
        found.add((plain(name), extra))
        for line in metadata.requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({**LINUX, "extra": extra}):
                todo += [(needed.name, each) for each in ("", *needed.extras)]
    return {name for name, _ in found}


def imported(sources: Iterable[str]) -> set[str]:
    """List what is imported from outside the standard library and this collection."""
    roots = set()
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                roots |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                roots.add(node.module.partition(".")[0])
    return roots - sys.stdlib_module_names - {"helpers", "tests"}


def unlisted(names: Iterable[str], *lists: str) -> list[str]:
    """List the imports whose package stands in none of the lists."""
    listed = {name for each in lists for name in read(each)}
    packages = metadata.packages_distributions()
    return sorted(
        name
        for name in names
        if not listed & {plain(package) for package in packages.get(name, [])}
    )


def sources_in(*folders: Path) -> list[str]:
    """Read the modules and the cells of the notebooks of folders."""
    sources = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    lessons = [files.read(path) for folder in folders for path in folder.rglob("*.ipynb")]
    return sources + [each.source for lesson in lessons for each in files.code_cells(lesson)]


def test_what_lessons_import_is_listed():
    sources = sources_in(ROOT / "helpers", ROOT / "notebooks")
    assert unlisted(imported(sources) - NOT_NEEDED, LESSON_LIST) == []


def test_what_tests_import_is_listed():
    found = imported(sources_in(ROOT / "tests"))
    assert unlisted(found - PEERS - STOOD_IN_FOR, LESSON_LIST, TEST_LIST) == []


def test_peers_are_installed_by_their_target():
    rule = (ROOT / "Makefile").read_text().partition("\nbackpack :=")[2].partition("\n\n")[0]
    assert all(name in rule for name in PEERS)


def test_students_folder_lists_what_it_imports(tmp_path):
    student.build(LESSONS, tmp_path / "class")
    shutil.rmtree(tmp_path / "class" / "colab")  # test_colab.py runs such copies
    sources = sources_in(tmp_path / "class")
    given = (tmp_path / "class" / "requirements.txt").read_text()
    assert unlisted(imported(sources) - NOT_NEEDED, given) == []
    assert {"jupyterlab", "ipykernel"} <= read(given).keys()  # what opens a notebook


@pytest.mark.skipif(
    torch.__version__.partition("+")[0] != read(LESSON_LIST)["torch"],
    reason="another torch brings other versions",
)
@pytest.mark.parametrize("listed", [LESSON_LIST, TEST_LIST], ids=["lessons", "tests"])
def test_lock_pins_all_that_is_installed(listed):
    """If not: `make lock`, or install what the lists say: remove .venv, and make will."""
    names = brought(read(listed))
    assert names > read(listed).keys()
    of_cuda = {name for name in names if re.match("nvidia|cuda|triton", name)}  # see `make lock`
    builds = {name: metadata.version(name).partition("+")[0] for name in names - of_cuda}  # no +cpu
    assert builds.items() <= read(LOCK).items()
