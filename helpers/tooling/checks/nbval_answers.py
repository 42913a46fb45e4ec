"""A pytest plugin: the run of a lesson in which nbval compares its outputs answers more than that.

With `--answers FOLDER`, further items follow the last cell of a lesson, in its kernel: that it
imported nothing of the tooling, and left no file behind; and that each answer to an exercise gets
its verdict. With `--sizes FILE`, lessons run with the parameters that the file states.
"""

import tomllib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_code_cell
from nbval.plugin import IPyNbCell, IPyNbFile

from helpers.tooling.checks import answers
from helpers.tooling.lesson import files, modules

IMPORTED = """\
import sys
print(*(
    module.__file__
    for name, module in sys.modules.items()
    if name.partition(".")[0] in ("helpers", "tests") and getattr(module, "__file__", None)
), sep="\\n")"""
"""What the kernel is asked, to know which modules of the collection the lesson has imported."""

_collect = IPyNbFile.collect
_set_up = IPyNbFile.setup


class Finding(AssertionError):
    """What is wrong, in words that need no traceback."""


class Item(IPyNbCell):
    """Something that is found out in the kernel of a lesson after its last cell."""

    def __init__(self, name: str, parent: IPyNbFile) -> None:
        super().__init__(name, parent, None, parent.nb.cells[-1], defaultdict(bool))

    def printed(self, source: str, place: str) -> str:
        """Run code in the kernel of the lesson, and return what it printed.

        Args:
            source: The code.
            place: The id of the cell that is named if this fails.
        """
        self.cell = new_code_cell(source, id=place)
        super().runtest()
        return "".join(each.get("text", "") for each in self.test_outputs)

    def repr_failure(self, excinfo: Any) -> str:
        """Show a finding as it is, and anything else as nbval does."""
        return (
            str(excinfo.value) if excinfo.errisinstance(Finding) else super().repr_failure(excinfo)
        )

    def reportinfo(self) -> tuple[Path, int, str]:
        """Name the lesson and what is found out."""
        return self.path, 0, f"{self.path.name}::{self.name}"


class Isolation(Item):
    """The lesson imported of the collection what it teaches, and left no file behind."""

    def runtest(self) -> None:
        """Ask the kernel, and look into the folder."""
        printed = self.printed(IMPORTED, self.cell.id)
        imported = [Path(each).resolve() for each in printed.splitlines()]
        foreign = (modules.HELPERS / "tooling", modules.HELPERS.parent / "tests")
        strange = [str(each) for each in imported if {*foreign} & {*each.parents}]
        if strange:
            raise Finding(f"it imported what no copy of it carries: {', '.join(sorted(strange))}")
        if left := sorted(_listed(self.path.parent) - self.parent.there):
            raise Finding(f"it left behind: {', '.join(left)}")


class Missing(Item):
    """Each exercise has a stub and a wrong answer, and each answer an exercise."""

    def runtest(self) -> None:
        """Compare the exercises with the file of answers."""
        found = answers.missing(self.parent.nb, _blocks(self.parent))
        try:
            answers.answers(self.parent.nb, [])
        except ValueError as error:
            found.append(f"no stub can be made: {error}")
        if found:
            raise Finding(f"{_file(self.parent)}: {'; '.join(found)}")


class Judgement(Item):
    """An answer gets the verdict that it must get."""

    def __init__(self, parent: IPyNbFile, answer: answers.Answer) -> None:
        super().__init__(answer.name, parent)
        self.answer = answer

    def runtest(self) -> None:
        """Run the answer, and then its check."""
        place = self.answer.check.id
        printed = self.printed(self.answer.source, place)
        printed += self.printed(self.answer.check.source, place)
        if found := answers.complaint(self.answer, printed):
            raise Finding(found)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two options."""
    group = parser.getgroup("nbval")
    group.addoption("--answers", metavar="FOLDER", help="judge its NN_name.py after each lesson")
    group.addoption("--sizes", metavar="FILE", help="parameters of lessons, as TOML")


def setup(file: IPyNbFile) -> None:
    """Remember, before a lesson runs, what lies in its folder."""
    file.there = _listed(file.path.parent)
    _set_up(file)


def collect(file: IPyNbFile) -> Iterator[IPyNbCell]:
    """List the cells of a lesson as nbval does, in the sizes stated, then what is asked of it."""
    sizes = _sizes(file)
    file.cells = []
    for item in _collect(file):
        if sizes and "parameters" in files.tags(item.cell):
            item.cell.source += "".join(f"\n{name} = {value!r}" for name, value in sizes.items())
        file.cells.append(item)
        yield item
    if file.config.option.answers:
        yield Isolation.from_parent(file, name="isolation")
        yield Missing.from_parent(file, name="answers")
        with suppress(ValueError):  # `Missing` says what is wrong with a solution
            for answer in answers.answers(file.nb, _blocks(file)):
                yield Judgement.from_parent(file, answer=answer)


def _sizes(file: IPyNbFile) -> dict[str, int | str]:
    path = file.config.option.sizes
    return tomllib.loads(Path(path).read_text("utf-8")).get(file.path.stem, {}) if path else {}


def _file(file: IPyNbFile) -> Path:
    return Path(file.config.option.answers, f"{file.path.stem}.py")


def _blocks(file: IPyNbFile) -> list[answers.Block]:
    return answers.read(_file(file))


def _listed(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir() if not each.name.startswith(".")}


IPyNbFile.collect = collect
IPyNbFile.setup = setup
