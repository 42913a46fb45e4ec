"""The student's edition: solutions become stubs, which say what to write.

Run from the folder that holds `notebooks/`, `python -m helpers.tooling.student 3` writes lesson 3
to build/student/, and all lessons if none is named. The folder works alone: it has a copy of the
helpers and of requirements.txt.

A lesson has for each exercise a task, a cell tagged `solution` that holds one function or class
with docstrings, and a check cell right after it, which calls it in `with exercises.check(...)`.
The check cell is the student's, as it is.
"""

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

from nbformat import NotebookNode

from helpers.exercises import STILL_TO_DO
from helpers.tooling import editions, lessons

FOLDER = Path("build/student")
EXERCISES = (
    "Each exercise has three parts: the task, a cell to complete, and a check. Write your answer "
    "in place of the line that raises, and run both cells. The check says what is still to do, "
    "whether the shape is wrong or only the values, and when the answer is correct."
)
"""How the student's edition explains the exercises."""


def stub(solution: str) -> str:
    """Empty a solution, down to its signatures and docstrings.

    Args:
        solution: The source of one function or class, with docstrings.

    Returns:
        The same, where each function raises `NotImplementedError` that says what to write.

    Raises:
        ValueError: It is something else.
    """
    body = ast.parse(solution).body
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef | ast.ClassDef):
        raise ValueError("a solution is one function or one class")
    lines = solution.splitlines()
    return "\n".join(_emptied(body[0], lines, ""))


def student(lesson: Path) -> NotebookNode:
    """Derive the student's notebook from a lesson: stubs for solutions, and no outputs.

    Raises:
        ValueError: A solution is not one function or class with docstrings.
    """
    notebook = editions.derive(lesson)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace(editions.EXERCISES, EXERCISES)
            continue
        if "solution" in lessons.tags(cell):
            try:
                cell.source = stub(cell.source)
            except ValueError as error:
                place = lessons.place(notebook, cell)
                raise ValueError(f"{lesson.name}, {place}: {error}") from error
            cell.metadata.pop("jupyter", None)
            cell.metadata.pop("tags")
        cell.metadata.pop("output_of", None)
        cell.outputs, cell.execution_count = [], None
    return notebook


def build(chosen: Sequence[Path], folder: Path = FOLDER) -> None:
    """Write the student's notebooks of lessons, and what they need, into a folder.

    Raises:
        ValueError: As in `student`; then nothing is written.
    """
    notebooks = {lesson: student(lesson) for lesson in chosen}
    all_lessons = lessons.find(chosen[0].parent)
    for lesson, notebook in notebooks.items():
        if len(chosen) < len(all_lessons):
            editions.relink(notebook, None)  # the other lessons may not be there
        editions.save(notebook, folder / lesson.name)
    for path in sorted({path for each in notebooks.values() for path in editions.needed(each)}):
        source = (editions.HELPERS / path).read_text(encoding="utf-8")
        editions.write(source, folder / "helpers" / path)
    requirements = editions.HELPERS.parent / "requirements.txt"
    editions.write(requirements.read_text(encoding="utf-8"), folder / requirements.name)


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
    try:
        build(lessons.choose(sys.argv[1:]))
    except ValueError as error:
        sys.exit(str(error))
    print(f"the student's edition is in {FOLDER}: it works alone, and is overwritten next time")
