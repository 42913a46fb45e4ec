"""The student's edition: solutions become stubs, which say what to write.

Run from the folder that holds `notebooks/`, `python -m helpers.tooling.student 3` makes
build/student/ anew with lesson 3, and with all lessons if none is named. The folder works alone: it
has a copy of the helpers and of requirements.txt.

A lesson has for each exercise a task, a cell tagged `solution` that holds one function or class
with docstrings, and a check cell right after it, which calls it in `with exercises.check(...)`.
The check cell is the student's, as it is.
"""

import ast
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from nbformat import NotebookNode

from helpers.exercises import STILL_TO_DO
from helpers.tooling import drafts, editions, lessons
from helpers.tooling.execution import end_cleanly_on_signals

FOLDER = Path("build/student")
EXERCISES = (
    "Each exercise has three parts: the task, a cell to complete, and a check. Write your answer "
    "in place of the line that raises, and run both cells. The check says what is still to do, "
    "whether the shape is wrong or only the values, and when the answer is correct."
)
"""How the student's edition explains the exercises."""
EMPTY = "Saved outputs are gone: where the text speaks of results, run the cells above it first."
BESIDE = "keep the notebook beside the folder `helpers` that came with it"


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


def student(lesson: Path) -> NotebookNode:
    """Derive the student's notebook from a lesson: stubs for solutions, and no outputs.

    Raises:
        ValueError: A solution is not one function or class with docstrings.
    """
    notebook = editions.derive_copy(lesson, BESIDE)
    notebook.cells[0].source += f" *{EMPTY}*"
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace(editions.EXERCISES, EXERCISES)
            continue
        if "solution" in lessons.tags(cell):
            with editions.located(f"{lesson.name}, {lessons.place(notebook, cell)}: "):
                cell.source = stub(cell.source)
            cell.metadata.pop("jupyter", None)
            cell.metadata.pop("tags")
        cell.metadata.pop("output_of", None)
        cell.outputs, cell.execution_count = [], None
    return notebook


def build(chosen: Sequence[Path], folder: Path = FOLDER) -> None:
    """Make a folder anew with the student's notebooks of lessons, and what they need.

    Args:
        chosen: The lessons; links to others become plain text.
        folder: It is there in full or as it was before; what else was in it is gone.

    Raises:
        ValueError: As in `student`; a lesson imports what is not there; the folder cannot be
            written.
    """
    notebooks = {lesson: student(lesson) for lesson in chosen}
    modules = set()
    for lesson, notebook in notebooks.items():
        editions.relink(notebook, None, there=[each.name for each in chosen])
        with editions.located(f"{lesson.name}, "):
            modules.update(editions.needed(notebook))
    with drafts.replaced(folder) as draft:
        for lesson, notebook in notebooks.items():
            editions.save(notebook, draft / lesson.name)
        for path in sorted(modules):
            copied = draft / "helpers" / path
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(editions.HELPERS / path, copied)
        shutil.copyfile(editions.HELPERS.parent / "requirements.txt", draft / "requirements.txt")


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


if __name__ == "__main__":
    end_cleanly_on_signals()
    try:
        chosen = lessons.choose(sys.argv[1:])
        build(chosen)
    except ValueError as error:
        sys.exit(str(error))
    print(f"for students, in {FOLDER}: {', '.join(each.stem for each in chosen)}")
    print("The folder works alone, and is made anew next time.")
