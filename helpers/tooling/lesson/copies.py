"""An edition of a lesson: a notebook derived from it, with its links and its exercises."""

import ast
import re
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from helpers.exercises import STILL_TO_DO
from helpers.tooling.lesson import files

EXERCISES = (
    "Write your answer in a new cell above the check, under the same name. "
    "Until you do, the check tests our solution, which is folded."
)
"""How every lesson explains its exercises."""
LOST = "download the whole collection"
"""What the set-up cell of every lesson says to do where it finds no folder `helpers`."""
COPY = (
    "*This is a copy. Names such as `make bench`, `tests/` or `notebooks/` belong to the original "
    "collection and are not here.*"
)
"""What every copy says in its first cell, since its text is the lesson's."""


LINK = r"\[([^\]]+)\]\((\d\d[a-z]?_\w+\.ipynb)(#[^)]*)?\)"
"""A link to a lesson: its text, the file, and perhaps a heading."""


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
    pairs = []
    for solution, check in pairwise(notebook.cells):
        if "solution" in files.tags(solution):
            pairs.append((solution, check))
    return pairs


def relink(notebook: NotebookNode, target: str | None, local_files: Collection[str] = ()) -> None:
    """Put `target` before lessons in links to them; with None, only the text of a link stays.

    Links to the file names in `local_files`, of lessons beside this one, stay as they are.
    """

    def relinked(link: re.Match[str]) -> str:
        text, file, _ = link.groups()
        if file in local_files:
            return link[0]
        return text if target is None else f"[{text}]({target}{file})"

    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(LINK, relinked, cell.source)


def relink_headings(notebook: NotebookNode, prefix: str) -> None:
    """Point links to headings of the same lesson at the cells that hold them.

    A page that shows outputs in frames of their own follows no link out of them. So a cell whose
    saved output holds such links becomes text: that output.
    """
    for index, cell in enumerate(notebook.cells):
        texts = _markdown_outputs(cell)
        if any("](#" in text for text in texts):
            notebook.cells[index] = new_markdown_cell("\n\n".join(texts), id=cell.id)

    markdown_cells = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    cell_ids = {}
    for cell in markdown_cells:
        for heading in re.findall(r"(?m)^#+ (.+)$", cell.source):
            cell_ids[heading.replace(" ", "-")] = cell.id

    def relinked(link: re.Match[str]) -> str:
        heading = link[1]
        return f"]({prefix}{cell_ids[heading]})" if heading in cell_ids else link[0]

    for cell in markdown_cells:
        cell.source = re.sub(r"\]\(#([^)]+)\)", relinked, cell.source)


def _markdown_outputs(cell: NotebookNode) -> list[str]:
    texts = []
    for output in cell.get("outputs", []):
        text = output.get("data", {}).get("text/markdown")
        if text:
            texts.append(text)
    return texts


def stub(solution: str) -> str:
    """Empty a function or a class, down to signatures, docstrings, and what is still to do."""

    def raising(name: str, _: list[str]) -> list[str]:
        return [f'raise NotImplementedError("{STILL_TO_DO}{name}")']

    return _with_bodies(solution, raising)


def marked(solution: str) -> str:
    """Set the marks of nbgrader around what a stub leaves out of a function or a class."""

    def between_marks(_: str, body: list[str]) -> list[str]:
        return ["### BEGIN SOLUTION", *body, "### END SOLUTION"]

    return _with_bodies(solution, between_marks)


def _with_bodies(solution: str, new_body: Callable[[str, list[str]], list[str]]) -> str:
    """Write another body, `new_body(name, lines)`, into a function or each method of a class."""
    lines = solution.splitlines()
    # From the last to the first, so that the positions of those before stay true.
    for name, function in reversed(_functions(solution).items()):
        docstring = function.body[0]
        body = slice(docstring.end_lineno, function.end_lineno)  # lines count from 1
        indent = " " * docstring.col_offset
        old_lines = [line.removeprefix(indent) for line in lines[body]]
        new_lines = []
        for line in new_body(name, old_lines):
            new_lines.append(f"{indent}{line}".rstrip())
        lines[body] = new_lines
    return "\n".join(lines)


def _functions(solution: str) -> dict[str, ast.FunctionDef]:
    """Find the function that a solution is, or the methods of the class that it is, by name."""
    definition, *more = ast.parse(solution).body
    if more or not isinstance(definition, ast.FunctionDef | ast.ClassDef):
        raise ValueError("a solution is one function or one class")
    functions = {definition.name: definition}
    if isinstance(definition, ast.ClassDef):
        functions = {}
        for node in definition.body[1:]:  # the docstring comes first
            functions[f"{definition.name}.{node.name}"] = node
    for name, node in functions.items():
        is_function = isinstance(node, ast.FunctionDef)
        if not is_function or not ast.get_docstring(node) or not ast.get_docstring(definition):
            raise ValueError(f"`{name}` must be a function with a docstring saying what to write")
    return functions
