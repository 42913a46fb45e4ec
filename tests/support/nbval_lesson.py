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
from collections.abc import Iterator
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


class Kernel(RunningKernel):
    """nbval's kernel, for which nobody waits when it is dead."""

    def get_message(self, stream: str, timeout: float | None = None) -> dict[str, Any]:
        """Wait for a message in slices of a second, as long as there is a kernel to send one.

        Raises:
            queue.Empty: The timeout is over.
            RuntimeError: The kernel died.
        """
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
        """Name the cell that failed, `cell 48 (port-check)`, and quote any warning.

        nbval says that there is an output on stderr, and not which.
        """
        if excinfo.errisinstance(AssertionError):  # of the items below, in words
            return str(excinfo.value)
        outputs = self.test_outputs or []
        warned = "".join(each.text for each in outputs if each.get("name") == "stderr")
        place = files.place(self.parent.nb, self.cell)
        shown = super().repr_failure(excinfo)
        return f"{place}\n{shown}" + (f"\nstderr: {warned}" if warned else "")


class Item(Cell):
    """Something that is found out in the kernel of a lesson after its last cell."""

    def printed(self, source: str, place: str) -> str:
        """Run code in the kernel, and return what it printed; `place` is named if it fails."""
        self.cell = new_code_cell(source, id=place)
        super().runtest()
        return "".join(each.get("text", "") for each in self.test_outputs)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Name the lesson and what is found out."""
        return self.path, 0, f"{self.path.name}::{self.name}"


class Isolation(Item):
    """The lesson imported of the collection what it teaches, and left no file behind."""

    def runtest(self) -> None:
        """Ask the kernel, and look into the folder."""
        imported = self.printed(IMPORTED, self.cell.id).splitlines()
        foreign = {imports.ROOT / "helpers" / "tooling", imports.ROOT / "tests"}
        strange = sorted(each for each in imported if foreign & {*Path(each).resolve().parents})
        assert not strange, f"it imported what no copy of it carries: {', '.join(strange)}"
        left = sorted(_listed(self.path.parent) - self.parent.there)
        assert not left, f"it left behind: {', '.join(left)}"


class Missing(Item):
    """Each exercise has a stub and a wrong answer, and each answer an exercise."""

    def runtest(self) -> None:
        """Compare the exercises with the file of answers."""
        found = answers.missing(self.parent.nb, self.parent.blocks)
        assert not found, f"{self.path.stem}.py: {'; '.join(found)}"


class Judgement(Item):
    """An answer gets the verdict that it must get."""

    answer: answers.Answer

    def runtest(self) -> None:
        """Run the answer, and then its check."""
        place = self.answer.check.id
        printed = self.printed(self.answer.source, place)
        printed += self.printed(self.answer.check.source, place)
        found = answers.complaint(self.answer, printed)
        assert not found, found


class Lesson(IPyNbFile):
    """A lesson: its cells, and what is asked in its kernel afterwards."""

    def setup(self) -> None:
        """Start the kernel, and remember what lies in the folder."""
        os.environ.setdefault("TQDM_DISABLE", "1")  # progress is not saved
        self.there = _listed(self.path.parent)
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
            self.blocks = answers.read(Path(folder, "exercises", f"{self.path.stem}.py"))
            yield self._item(Isolation, "isolation")
            yield self._item(Missing, "answers")
            for answer in answers.answers(self.nb, self.blocks):
                item = self._item(Judgement, answer.name)
                item.answer = answer
                yield item

    def _item(self, kind: type[Item], name: str) -> Item:
        last = self.nb.cells[-1]
        options = defaultdict(bool)
        return kind.from_parent(self, name=name, cell_num=None, cell=last, options=options)


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
