"""An edition of a lesson: a notebook derived from it, with its links and its exercises."""

import ast
import re
from collections.abc import Callable, Collection
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from helpers.exercises import STILL_TO_DO
from helpers.tooling.lesson import files

EXERCISES = (
    "Write your answer in a new cell above the check, under the same name. "
    "Until then the check tests the folded solution."
)
"""How every lesson explains its exercises."""
LOST = "download the whole collection"
"""What the set-up cell of every lesson says to do where it finds no folder `helpers`."""
COPY = (
    "*This is a copy. Names such as `make bench`, `tests/` or `notebooks/` belong to the original "
    "collection and are not here.*"
)
"""What every copy says in its first cell, since its text is the lesson's."""


def derive(lesson: Path, missing_hint: str) -> NotebookNode:
    """Read a lesson as a copy, which says `missing_hint` if it finds no folder `helpers`."""
    notebook = files.read(lesson)
    notebook.cells[0].source += f"\n\n{COPY}"
    for cell in files.code_cells(notebook):
        cell.source = cell.source.replace(LOST, missing_hint)
        cell.metadata.pop("output_of", None)
    return notebook


def exercises(notebook: NotebookNode) -> list[tuple[NotebookNode, NotebookNode]]:
    """List the solutions of a lesson, each with the cell that checks it."""
    pairs = zip(notebook.cells, notebook.cells[1:], strict=False)
    return [(solution, check) for solution, check in pairs if "solution" in files.tags(solution)]


def relink(notebook: NotebookNode, target: str | None, local_files: Collection[str] = ()) -> None:
    """Put `target` before lessons in links to them; with None, only the text of a link stays.

    Links to the file names in `local_files`, of lessons beside this one, stay as they are.
    """

    def led(link: re.Match[str]) -> str:
        if link[2] in local_files:
            return link[0]
        return link[1] if target is None else f"[{link[1]}]({target}{link[2]})"

    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\[([^\]]+)\]\((\d\d_\w+\.ipynb)(#[^)]*)?\)", led, cell.source)


def relink_headings(notebook: NotebookNode, prefix: str) -> None:
    """Point links to headings of the same lesson at the cells that hold them.

    A page that shows outputs in frames of their own follows no link out of them. So a cell whose
    saved output holds such links becomes text: that output.
    """
    for number, cell in enumerate(notebook.cells):
        shown = [out.get("data", {}).get("text/markdown", "") for out in cell.get("outputs", [])]
        if any("](#" in text for text in shown):
            notebook.cells[number] = new_markdown_cell("\n\n".join(filter(None, shown)), id=cell.id)
    texts = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    cell_ids = {
        heading.replace(" ", "-"): cell.id
        for cell in texts
        for heading in re.findall(r"(?m)^#+ (.+)$", cell.source)
    }
    for cell in texts:
        cell.source = re.sub(
            r"\]\(#([^)]+)\)",
            lambda link: f"]({prefix}{cell_ids[link[1]]})" if link[1] in cell_ids else link[0],
            cell.source,
        )


def stub(solution: str) -> str:
    """Empty a function or a class, down to signatures, docstrings, and what is still to do."""
    raising = f'raise NotImplementedError("{STILL_TO_DO}{{}}")'
    return _with_bodies(solution, lambda name, _: [raising.format(name)])


def marked(solution: str) -> str:
    """Set the marks of nbgrader around what a stub leaves out of a function or a class."""
    return _with_bodies(solution, lambda _, body: ["### BEGIN SOLUTION", *body, "### END SOLUTION"])


def _with_bodies(solution: str, new_body: Callable[[str, list[str]], list[str]]) -> str:
    """Write another body, `new_body(name, lines)`, into a function or each method of a class."""
    definition, *more = ast.parse(solution).body
    if more or not isinstance(definition, ast.FunctionDef | ast.ClassDef):
        raise ValueError("a solution is one function or one class")
    lines, functions = solution.splitlines(), {definition.name: definition}
    if isinstance(definition, ast.ClassDef):
        functions = {f"{definition.name}.{node.name}": node for node in definition.body[1:]}
    for name, node in reversed(functions.items()):
        if not isinstance(node, ast.FunctionDef) or not all(
            map(ast.get_docstring, (definition, node))
        ):
            raise ValueError(f"`{name}` must be a function with a docstring saying what to write")
        body, indent = slice(node.body[0].end_lineno, node.end_lineno), " " * (node.col_offset + 4)
        inner = new_body(name, [line.removeprefix(indent) for line in lines[body]])
        lines[body] = [f"{indent}{line}".rstrip() for line in inner]
    return "\n".join(lines)
