"""The modules of `helpers` that a lesson reaches by imports, and those that they import in turn."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from helpers.tooling.lesson import files

ROOT = Path(__file__).resolve().parents[3]
"""The folder that holds `helpers`."""


def reached(notebook: NotebookNode) -> list[Path]:
    """List the modules of `helpers` that the cells of a lesson need, wherever they import them.

    Returns:
        Paths such as `helpers/norms.py` in order, with the packages that hold the modules.

    Raises:
        ValueError: A cell is not Python, with its place.
    """
    found: set[Path] = set()
    todo: list[Path] = []
    for cell in files.code_cells(notebook):
        try:
            todo += _imported(without_magics(cell.source))
        except SyntaxError as error:
            place = files.place(notebook, cell)
            raise ValueError(f"{place} is not Python: {error.msg}") from error
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += _imported((ROOT / path).read_text("utf-8"))
    return sorted(found)


def without_magics(source: str) -> str:
    """Turn what only IPython understands, such as `%timeit` and `!ls`, into calls of functions."""
    # A magic that runs the rest of its cell as Python may hide an import; others hold no Python.
    source = re.sub(r"\A\s*%%(time|timeit|capture|prun)\b.*\n", "", source)
    return TransformerManager().transform_cell(source)


def _imported(source: str) -> Iterator[Path]:
    """List the modules of `helpers` that a piece of code imports, inside functions too."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{each.name}" for each in node.names]
        for parts in (name.split(".") for name in names):
            for depth in range(1, len(parts) + 1) if parts[0] == "helpers" else ():
                path = Path(*parts[:depth])
                here = (path / "__init__.py", path.with_suffix(".py"))  # none for a function
                yield from (each for each in here if (ROOT / each).exists())
