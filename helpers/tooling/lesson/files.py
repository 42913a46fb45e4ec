"""Lessons as files: find them, choose some, read one, and say where in it something is.

Run from the folder that holds `notebooks/`, `python -m helpers.tooling.lesson.files 3 04` prints
the paths of these lessons, and of all if none is named.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbformat import NotebookNode

FOLDER = Path("notebooks")


def find(folder: Path = FOLDER) -> list[Path]:
    """List the lessons of a folder in reading order; raise ValueError if there are none."""
    found = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    if not found:
        raise ValueError(f"no lesson {folder}/NN_name.ipynb from {Path.cwd()}")
    return found


def choose(names: Sequence[str], folder: Path = FOLDER) -> list[Path]:
    """Find lessons by number (`"3"` or `"03"`), name or file name; without names, all of them.

    Raises:
        ValueError: A name fits no lesson.
    """
    lessons = find(folder)
    stems = [name.zfill(2) if name.isdigit() else Path(name).stem for name in names]
    for name, stem in zip(names, stems, strict=True):
        if not any(stem in (each.stem, each.stem[:2]) for each in lessons):
            there = ", ".join(each.stem for each in lessons)
            raise ValueError(f"there is no lesson {name!r}, there are {there}")
    return [each for each in lessons if not names or {each.stem, each.stem[:2]} & {*stems}]


def read(lesson: Path) -> NotebookNode:
    """Read a lesson."""
    import nbformat  # takes seconds, which a mistyped name of a lesson need not wait for

    return nbformat.read(lesson, nbformat.NO_CONVERT)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """List the cells that run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: NotebookNode) -> list[str]:
    """List the tags of a cell."""
    return cell.metadata.get("tags", [])


def is_compared(cell: NotebookNode) -> bool:
    """Return whether the saved output of a code cell is compared."""
    return "nbval-ignore-output" not in tags(cell)


def place(notebook: NotebookNode, cell: NotebookNode) -> str:
    """Name a cell by its position, from 1, and its id: `cell 5 (the-loop)`."""
    return f"cell {[each.id for each in notebook.cells].index(cell.id) + 1} ({cell.id})"


if __name__ == "__main__":
    try:
        print(*choose(sys.argv[1:]))
    except ValueError as error:
        sys.exit(str(error))
