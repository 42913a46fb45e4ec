"""An edition of a lesson: a notebook derived from it, with the helpers that it needs."""

import ast
import copy
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from helpers.tooling import lessons

HELPERS = Path(__file__).parents[1]
EXERCISES = (
    "Each exercise has three parts: the task, a hidden cell with a solution, and a check. "
    "Write your own in a new cell directly above the check, under the same name, and run both; "
    "unfold the solution afterwards. As long as you write nothing, the check tests the solution."
)
"""How every lesson explains its exercises."""


def derive(lesson: Path) -> NotebookNode:
    """Read a lesson, to be changed into an edition of it."""
    return copy.deepcopy(lessons.read(lesson))


def needed(notebook: NotebookNode) -> list[Path]:
    """List the helper modules that a lesson imports, and those that they import in turn.

    Returns:
        Paths relative to the folder `helpers`, in order of their names, packages included.
    """
    found: set[Path] = set()
    sources = [cell.source for cell in lessons.code_cells(notebook)]
    while sources:
        new = set(_imported(sources.pop())) - found
        found |= new
        sources.extend((HELPERS / path).read_text(encoding="utf-8") for path in new)
    return sorted(found)


def write(text: str, path: Path) -> None:
    """Write a file, which is there in full or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def save(notebook: NotebookNode, path: Path) -> None:
    """Validate an edition and write it."""
    nbformat.validate(notebook)
    write(nbformat.writes(notebook) + "\n", path)


def relink(notebook: NotebookNode, target: str | None) -> None:
    """Let links between lessons lead somewhere else.

    Args:
        notebook: The edition.
        target: What to put before a lesson's file name; None leaves the text of the link alone.
    """
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(
                r"\[([^\]]+)\]\((\d\d_\w+\.ipynb)(#[^)]*)?\)",
                lambda link: link[1] if target is None else f"[{link[1]}]({target}{link[2]})",
                cell.source,
            )


def _imported(source: str) -> Iterator[Path]:
    """List the files of `helpers` that a source imports, their packages included."""
    names: list[str] = []
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Import):
            names += [each.name for each in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names.append(statement.module)
            names += [f"{statement.module}.{each.name}" for each in statement.names]
    return _files(name for name in names if name.partition(".")[0] == "helpers")


def _files(names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        parts = name.split(".")[1:]
        for length in range(len(parts) + 1):
            base = Path(*parts[:length])
            package, module = base / "__init__.py", base.with_suffix(".py") if length else None
            if (HELPERS / package).exists():
                yield package
            elif module and (HELPERS / module).exists():
                yield module
