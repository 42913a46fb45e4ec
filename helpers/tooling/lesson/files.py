"""Lessons as files: find them, choose some, read one, and say where in it something is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbformat import NotebookNode

FOLDER = Path("notebooks")


def find(folder: Path = FOLDER) -> list[Path]:
    """List the lessons of a folder in reading order; raise ValueError if there are none.

    A subject may have several pages, each a lesson of its own: `03_name`, `03b_name`, `03c_name`.
    """
    lessons = sorted([*folder.glob("[0-9][0-9]_*.ipynb"), *folder.glob("[0-9][0-9][a-z]_*.ipynb")])
    if not lessons:
        raise ValueError(f"no lesson {folder}/NN_name.ipynb in {Path.cwd()}")
    return lessons


def number(lesson: Path) -> str:
    """Return the number of a lesson, as its name begins: `"03"`, or `"03b"` for a second page."""
    return lesson.stem.partition("_")[0]


def choose(names: Sequence[str]) -> list[Path]:
    """Find lessons by number (`"3"`, `"03"`, `"3b"`), name or file name; without names, all.

    A number means one page: `"3"` is lesson 3 alone, and `"3b"` its second page.

    Raises:
        ValueError: A name fits no lesson.
    """
    lessons = find()
    by_name = {}
    for lesson in lessons:
        by_name[lesson.stem] = lesson
        by_name[number(lesson)] = lesson
    chosen = set()
    for name in names:
        stem = f"0{name}" if re.fullmatch(r"\d[a-z]?", name) else Path(name).stem
        if stem not in by_name:
            there = ", ".join(lesson.stem for lesson in lessons)
            raise ValueError(f"there is no lesson {name!r}, only {there}")
        chosen.add(by_name[stem])
    return sorted(chosen) or lessons


def read(lesson: Path) -> NotebookNode:
    """Read a lesson, in the format version that its file has."""
    import nbformat  # takes seconds; a mistyped lesson name should fail at once

    return nbformat.read(lesson, nbformat.NO_CONVERT)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """List the cells that run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: NotebookNode) -> list[str]:
    """List the tags of a cell, which need not have any."""
    return cell.metadata.get("tags", [])


def is_compared(cell: NotebookNode) -> bool:
    """Return whether the saved output of a code cell is compared."""
    return "nbval-ignore-output" not in tags(cell)


def place(notebook: NotebookNode, cell: NotebookNode) -> str:
    """Name a cell by its position, from 1, and its id: `cell 5 (the-loop)`."""
    ids = [each.id for each in notebook.cells]
    return f"cell {ids.index(cell.id) + 1} ({cell.id})"
