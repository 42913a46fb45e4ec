"""An edition of a lesson: a notebook derived from it, with the helpers that it needs."""

import ast
import copy
import re
import symtable
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from helpers.exercises import STILL_TO_DO
from helpers.tooling.lesson import files

HELPERS = Path(__file__).parents[2]
EXERCISES = (
    "Each exercise has three parts: the task, a hidden cell with a solution, and a check. "
    "Write your own in a new cell directly above the check, under the same name, and run both; "
    "unfold the solution afterwards. As long as you write nothing, the check tests the solution."
)
"""How every lesson explains its exercises."""
LOST = "download the whole collection"
"""What the set-up cell of every lesson says to do where it finds no folder `helpers`."""
COPY = (
    "*This is a copy. Names such as `make bench`, `tests/` or `notebooks/` are of the collection "
    "from which it was made, and are not here.*"
)
"""What every copy says in its first cell, since its text is the lesson's."""


def derive(lesson: Path) -> NotebookNode:
    """Read a lesson, to be changed into an edition of it."""
    return copy.deepcopy(files.read(lesson))


def derive_copy(lesson: Path, beside: str) -> NotebookNode:
    """Read a lesson, to be changed into a copy that works away from the collection.

    Args:
        lesson: The notebook.
        beside: What to do where the copy finds no folder `helpers`.

    Returns:
        The notebook, which says that it is a copy.
    """
    notebook = derive(lesson)
    notebook.cells[0].source += f"\n\n{COPY}"
    for cell in files.code_cells(notebook):
        cell.source = cell.source.replace(LOST, beside)
    return notebook


@contextmanager
def located(where: str) -> Iterator[None]:
    """Put the place where it arose before the sentence of a `ValueError`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}{error}") from error


def needed(notebook: NotebookNode) -> list[Path]:
    """List the helper modules that a lesson imports, and those that they import in turn.

    Returns:
        Paths relative to the folder `helpers`, in order of their names, packages included.

    Raises:
        ValueError: A cell is not Python, or imports of `helpers` what is not there.
    """
    found: set[Path] = set()
    sources = [
        (files.place(notebook, cell), _without_magics(cell.source))
        for cell in files.code_cells(notebook)
    ]
    while sources:
        place, source = sources.pop(0)
        new = sorted(set(_imported(source, place)) - found)
        found.update(new)
        sources += [(f"helpers/{path}", (HELPERS / path).read_text("utf-8")) for path in new]
    return sorted(found)


def save(notebook: NotebookNode, path: Path) -> None:
    """Validate an edition and write it."""
    nbformat.validate(notebook)
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def relink(notebook: NotebookNode, target: str | None, there: Collection[str] = ()) -> None:
    """Let links between lessons lead somewhere else.

    Args:
        notebook: The edition.
        target: What to put before a lesson's file name; None leaves the text of the link alone.
        there: File names of lessons that lie beside this one; links to them stay as they are.
    """

    def led(link: re.Match[str]) -> str:
        if link[2] in there:
            return link[0]
        return link[1] if target is None else f"[{link[1]}]({target}{link[2]})"

    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\[([^\]]+)\]\((\d\d_\w+\.ipynb)(#[^)]*)?\)", led, cell.source)


def stub(solution: str) -> str:
    """Empty a solution, down to its signatures and docstrings.

    Args:
        solution: The source of one function or class, with docstrings.

    Returns:
        The same, where each function raises `NotImplementedError` that says what to write.

    Raises:
        ValueError: It is something else.
    """
    try:
        body = ast.parse(solution).body
    except SyntaxError as error:
        raise ValueError(f"a solution is Python, this one is not: {error.msg}") from error
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef | ast.ClassDef):
        raise ValueError("a solution is one function or one class")
    lines = solution.splitlines()
    return "\n".join(_emptied(body[0], lines, ""))


def _without_magics(source: str) -> str:
    """Turn what only IPython understands, such as `%timeit` and `!ls`, into calls of functions."""
    # A magic that runs the rest of its cell as Python may hide an import; others hold no Python.
    source = re.sub(r"\A\s*%%(time|timeit|capture|prun)\b.*\n", "", source)
    return TransformerManager().transform_cell(source)


def _imported(source: str, place: str) -> Iterator[Path]:
    """List the files of `helpers` that a source imports, their packages included."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise ValueError(f"{place} is not Python, see `{line}`: {error.msg}") from error
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import):
            for each in statement.names:
                yield from _files(each.name, place)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            yield from _files(statement.module, place)
            for each in statement.names:
                yield from _files(f"{statement.module}.{each.name}", place, member=True)


def _files(name: str, place: str, *, member: bool = False) -> Iterator[Path]:
    """List the files that the import of a module runs, its packages first.

    Args:
        name: Dotted; without effect unless it is of `helpers`.
        place: Where it is imported.
        member: The last part may be something inside the module before it.

    Raises:
        ValueError: There is no such module.
    """
    root, *parts = name.split(".")
    if root != "helpers":
        return
    package = Path("__init__.py")
    yield package
    for length in range(1, len(parts) + 1):
        base = Path(*parts[:length])
        if (HELPERS / base / "__init__.py").exists():
            package = base / "__init__.py"
            yield package
        elif (HELPERS / base).with_suffix(".py").exists():
            package = base.with_suffix(".py")
            yield package
        elif member and length == len(parts) and _defines(HELPERS / package, parts[-1]):
            return
        else:
            raise ValueError(f"{place} imports {name}, which is not there")


def _defines(module: Path, name: str) -> bool:
    """Say whether a module has something of this name, as far as its source tells."""
    table = symtable.symtable(module.read_text("utf-8"), str(module), "exec")
    return name == "*" or name in table.get_identifiers()


def _emptied(node: ast.FunctionDef | ast.ClassDef, lines: list[str], outer: str) -> list[str]:
    if ast.get_docstring(node) is None:
        raise ValueError(f"`{node.name}` has no docstring that says what to write")
    kept = lines[node.lineno - 1 : node.body[0].end_lineno]
    name = f"{outer}{node.name}"
    if isinstance(node, ast.FunctionDef):
        indent = " " * (node.col_offset + 4)
        return [*kept, f'{indent}raise NotImplementedError("{STILL_TO_DO}{name}")']
    for inner in node.body[1:]:
        if not isinstance(inner, ast.FunctionDef):
            raise ValueError(f"`{node.name}` holds more than functions")
        kept += ["", *_emptied(inner, lines, f"{name}.")]
    return kept
