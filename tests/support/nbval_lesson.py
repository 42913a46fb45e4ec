"""A pytest plugin: the run of a lesson in which nbval compares its outputs answers more than that.

A kernel that dies is noticed at once, and what fails is named by the id of its cell. With
`--try-answers FOLDER`, lessons run with the parameters that its sizes.toml states, and further
items follow the last cell of a lesson, in its kernel: that it imported nothing of the tooling, that
it left no file behind, and that each answer of `exercises/NN_name.py` gets its verdict.
"""

import os
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from nbformat.v4 import new_code_cell
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, RunningKernel
from nbval.plugin import IPyNbCell, IPyNbFile

from helpers.tooling.lesson import files, imports
from tests.support import answers

IMPORTED = """\
import sys
print(*(
    module.__file__
    for name, module in sys.modules.items()
    if name.partition(".")[0] in ("helpers", "tests") and getattr(module, "__file__", None)
), sep="\\n")"""
"""What the kernel is asked, to know which modules of the collection the lesson has imported."""
KEEP_FREED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""Settings of glibc for kernels: page faults are a third of the time of some lessons (lesson 7)."""


class Kernel(RunningKernel):
    """nbval's kernel, for which nobody waits when it is dead."""

    def get_message(self, stream: str, timeout: float | None = None) -> dict[str, Any]:
        """Wait for a message in slices of a second, as long as there is a kernel to send one."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            try:
                return super().get_message(stream, timeout=max(0, min(1, left)))
            except Empty:
                if not self.is_alive():
                    raise RuntimeError("the kernel died while this cell ran") from None
                if left <= 1:
                    raise


class Cell(IPyNbCell):
    """A cell of a lesson, compared by nbval."""

    def repr_failure(self, excinfo: Any) -> str:
        """Name the cell that failed, `cell 48 (port-check)`, and quote any warning."""
        if excinfo.errisinstance(AssertionError):  # of the items below, in words
            return str(excinfo.value)
        outputs = self.test_outputs or []
        warned = "".join(each.text for each in outputs if each.get("name") == "stderr")
        place = files.place(self.parent.nb, self.cell)
        shown = super().repr_failure(excinfo)
        return f"{place}\n{shown}" + (f"\nstderr: {warned}" if warned else "")


class Item(Cell):
    """Something that is found out in the kernel of a lesson after its last cell."""

    ask: Callable[["Item"], str | None]
    """Returns what is wrong."""

    def printed(self, source: str, place: str) -> str:
        """Run code in the kernel, and return what it printed; `place` is named if it fails."""
        self.cell = new_code_cell(source, id=place)
        super().runtest()
        return "".join(each.get("text", "") for each in self.test_outputs)

    def runtest(self) -> None:
        """Find it out."""
        found = self.ask(self)
        assert not found, found

    def reportinfo(self) -> tuple[Path, int, str]:
        """Name the lesson and what is found out."""
        return self.path, 0, f"{self.path.name}::{self.name}"


def _isolation(item: Item) -> str | None:
    """Has it imported of the collection what it teaches, and left no file behind?"""
    imported = item.printed(IMPORTED, item.cell.id).splitlines()
    foreign = {imports.ROOT / "helpers" / "tooling", imports.ROOT / "tests"}
    strange = sorted(each for each in imported if foreign & {*Path(each).resolve().parents})
    if strange:
        return f"it imported what no copy of it carries: {', '.join(strange)}"
    left = sorted(_listed(item.path.parent) - item.parent.there)
    return f"it left behind: {', '.join(left)}" if left else None


def _missing(blocks: list[answers.Block], item: Item) -> str | None:
    """Has each exercise a stub and a wrong answer, and each answer an exercise?"""
    found = answers.missing(item.parent.nb, blocks)
    return f"{item.path.stem}.py: {'; '.join(found)}" if found else None


def _judged(answer: answers.Answer, item: Item) -> str | None:
    """Does an answer get the verdict that it must get?"""
    sources = answer.source, answer.check.source
    return answers.complaint(
        answer, "".join(item.printed(each, answer.check.id) for each in sources)
    )


class Lesson(IPyNbFile):
    """A lesson: its cells, and what is asked in its kernel afterwards."""

    def setup(self) -> None:
        """Start the kernel, and remember what lies in the folder."""
        os.environ.setdefault("TQDM_DISABLE", "1")  # progress is not saved
        self.there = _listed(self.path.parent)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in KEEP_FREED.items():
                patch.setenv(name, value)
            self.kernel = Kernel(CURRENT_ENV_KERNEL_NAME, cwd=str(self.path.parent))

    def collect(self) -> Iterator[IPyNbCell]:
        """List the cells as nbval does, in the sizes stated, then what is asked of the lesson."""
        folder = self.config.option.try_answers
        sizes = {}
        if folder:
            sizes = tomllib.loads(Path(folder, "sizes.toml").read_text()).get(self.path.stem, {})
        for each in super().collect():
            if "parameters" in files.tags(each.cell):
                each.cell.source += "".join(f"\n{key} = {sizes[key]!r}" for key in sizes)
            yield Cell.from_parent(
                self, name=each.name, cell_num=each.cell_num, cell=each.cell, options=each.options
            )
        if folder:
            blocks = answers.read(Path(folder, "exercises", f"{self.path.stem}.py"))
            asked = {"isolation": _isolation, "answers": partial(_missing, blocks)}
            for answer in answers.answers(self.nb, blocks):
                asked[answer.name] = partial(_judged, answer)
            last = {
                "cell_num": len(self.nb.cells),
                "cell": self.nb.cells[-1],
                "options": defaultdict(bool),
            }
            for name, ask in asked.items():
                item = Item.from_parent(self, name=name, **last)
                item.ask = ask
                yield item


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    group = parser.getgroup("nbval")
    group.addoption("--try-answers", metavar="FOLDER", help="with exercises/ and sizes.toml")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Any:
    """Take lessons where nbval would collect them."""
    found = yield
    return [
        Lesson.from_parent(parent, path=file_path) if isinstance(each, IPyNbFile) else each
        for each in found
    ]


def _listed(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir() if not each.name.startswith(".")}
