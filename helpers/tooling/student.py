"""The student's edition: solutions become stubs, which say what to write.

Run from the folder that holds `notebooks/`, `python -m helpers.tooling.student 3` makes
build/student/ anew with lesson 3, and with all lessons if none is named. The folder works alone: it
has a copy of the helpers that lessons need and of requirements.txt, and copies for Colab.

A lesson has for each exercise a task, a cell tagged `solution` that holds one function or class
with docstrings, and a check cell right after it, which calls it in `with exercises.check(...)`.
The check cell is the student's, as it is.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from helpers.tooling import colab
from helpers.tooling.lesson import copies, drafts, files, imports
from helpers.tooling.lesson.execution import end_cleanly_on_signals

FOLDER = Path("build/student")
EXERCISES = (
    "Write your answer in place of the line that raises, and run it and the check, which says what "
    "is still to do, whether the shape is wrong or only the values, and when the answer is correct."
)
"""How the student's edition explains the exercises."""
EMPTY = "Saved outputs are gone: where the text speaks of results, run the cells above it first."
BESIDE = "keep the notebook beside the folder `helpers` that came with it"


NAME = 'student = ""  # your name, as it stands on the list: it goes with your answers'
"""The cell by which `make grade` knows whose notebook it is."""
README = """\
# Lessons with exercises

**Start.** With Python 3.11 or newer, in this folder: `python -m pip install -r requirements.txt`,
then `python -m jupyter lab`. Open a notebook, write your name into its first code cell, and run the
cells from the top. The folder `helpers` has to stay beside the notebooks. Or open a notebook of
the folder `colab` in Colab (File > Upload notebook), where nothing has to be installed.

**Answer.** Each exercise has a cell that ends in `raise NotImplementedError`. Write your answer in
place of that line, under the same name and with the same arguments, then run the cell and the check
below it. Hints are folded below each task. Helper functions and imports may stand in the same cell,
or in a new one above it. Of several answers to one exercise, the last one in the notebook counts.

**Submit** the notebook, saved, under its name: {lessons}. Nothing else. Before that, restart the
kernel and run all cells: a line of an answer that needs what comes below it fails then.

**What counts** is whether an answer is correct. It is judged by the check of the original lesson,
so your copy of the check may be changed or gone, and perhaps by a test more, with other shapes,
dtypes and values. Taken are the cell that answers an exercise and the cells that define what it
uses; other cells and saved outputs are not looked at. An answer may use its arguments, `torch` and
the functions of the lesson and of `helpers`, but none of the lesson's data. One that takes much
longer than it should, starts processes, writes files elsewhere, or reaches into the check is not
correct.
"""
"""What the students' folder says of itself."""


def editions(lesson: Path) -> tuple[NotebookNode, NotebookNode]:
    """Derive the student's notebook from a lesson, and its copy for Colab, which stands alone."""
    return student(lesson), colab.standalone(lesson, None, student(lesson, colab.BESIDE))


def student(lesson: Path, beside: str = BESIDE) -> NotebookNode:
    """Derive the student's notebook from a lesson: stubs for solutions, and no outputs.

    Args:
        lesson: The lesson.
        beside: What it says to do where it finds no folder `helpers`.
    """
    notebook = reworded(lesson, beside)
    notebook.cells.insert(1, new_code_cell(NAME, id="student"))
    for cell in files.code_cells(notebook):
        if "solution" in files.tags(cell):
            cell.source = copies.stub(cell.source)
            cell.metadata = nbformat.from_dict({})
    return notebook


def reworded(lesson: Path, beside: str = BESIDE) -> NotebookNode:
    """Derive a lesson that says how students answer, without outputs."""
    notebook = copies.derive(lesson, beside)
    notebook.cells[0].source += f" *{EMPTY}*"
    for cell in notebook.cells:
        cell.source = cell.source.replace(copies.EXERCISES, EXERCISES)
    for cell in files.code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    return notebook


def write(notebooks: Mapping[str, NotebookNode], folder: Path) -> None:
    """Write notebooks into a new folder by their names, and the helpers that they need."""
    needed = {Path("requirements.txt")}
    folder.mkdir(parents=True)
    for name, notebook in notebooks.items():
        copies.relink(notebook, None, there=notebooks)
        nbformat.write(notebook, folder / name)
        needed.update(imports.reached(notebook))
    for path in needed:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(imports.ROOT / path, folder / path)


def build(chosen: Sequence[Path], folder: Path = FOLDER) -> None:
    """Make a folder anew with the student's notebooks of some lessons, and what they need."""
    made = {lesson.name: editions(lesson) for lesson in chosen}
    with drafts.replaced(folder) as draft:
        write({name: notebook for name, (notebook, _) in made.items()}, draft)
        (draft / "colab").mkdir()
        for name, (_, alone) in made.items():
            nbformat.write(alone, draft / "colab" / name)
        lessons = ", ".join(f"`{name}`" for name in made)
        (draft / "README.md").write_text(README.format(lessons=lessons), encoding="utf-8")


if __name__ == "__main__":
    end_cleanly_on_signals()
    try:
        chosen = files.choose(sys.argv[1:])
    except ValueError as error:
        sys.exit(str(error))
    build(chosen)
    print(f"for students, in {FOLDER}: {', '.join(each.stem for each in chosen)}")
    print("The folder works alone, and is made anew next time.")
