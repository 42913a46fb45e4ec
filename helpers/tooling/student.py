"""Editions for a class: lessons with stubs for students, a course for nbgrader for the teacher.

Run from the folder that holds `notebooks/`, `python -m helpers.tooling.student 3` rebuilds two
folders with lesson 3, or with all lessons if none is named:

- build/student/ to give out. It works alone: notebooks with stubs in place of solutions, the
  helpers that they import, requirements.txt, and copies for Colab.
- build/nbgrader/ to keep: a course of nbgrader, with the solutions between its marks. With
  `--hidden FOLDER`, the regions of FOLDER/03_torch_func.py from `### BEGIN HIDDEN TESTS` to
  `### END HIDDEN TESTS` are in it, each in the check cell whose id its second line names.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from helpers.tooling import colab
from helpers.tooling.lesson import copies, drafts, endings, files, imports

FOLDER = Path("build/student")
COURSE = Path("build/nbgrader")
EXERCISES = (
    "Write your answer in place of the line that raises, and run it and the check, which says what "
    "is still to do, whether the shape is wrong or only the values, and when the answer is correct."
)
"""How the student's edition explains the exercises."""
EMPTY = "Saved outputs are gone: where the text mentions results, run the cells above it first."
BESIDE = "keep the notebook beside the folder `helpers` that came with it"
SOLUTION = {"solution": True, "grade": False, "locked": False}
CHECK = {"solution": False, "grade": True, "locked": True, "points": 1}
"""What nbgrader calls a cell of autograded tests."""
HIDDEN = re.compile(r"(?ms)^### BEGIN HIDDEN TESTS\n# (\S+)\n.*?^### END HIDDEN TESTS$")
CONFIG = f"""\
c = get_config()
c.CourseDirectory.course_id = "per-sample-gradients"
c.ClearSolutions.code_stub = {{"python": 'raise NotImplementedError("{copies.STILL_TO_DO}this")'}}
c.Execute.timeout = 60  # seconds for a cell
c.OverwriteCells.add_missing_cells = True  # a check that a student deleted counts all the same
# Names of collected files: anna_03_torch_func.ipynb, or as Moodle has them.
c.FileNameCollectorPlugin.named_regexp = (
    r".*/(?P<student_id>[^/_]+)_(\\d+_assignsubmission_file_)?(?P<file_id>.+)\\.ipynb"
)
"""
README = Path(__file__).with_suffix(".md")
"""The README of the students' folder."""


def edition(
    lesson: Path,
    missing_hint: str = BESIDE,
    rewrite: Callable[[str], str] = copies.stub,
    hidden: Mapping[str, str] | None = None,
) -> NotebookNode:
    """Derive a notebook that nbgrader takes: no outputs, and each check gives a point.

    Without its helpers it says `missing_hint`. Solutions are rewritten, and `hidden` tests, by the
    id of the check, are added to checks.
    """
    notebook = copies.derive(lesson, missing_hint)
    notebook.cells[0].source += f" *{EMPTY}*"
    for cell in notebook.cells:
        cell.source = cell.source.replace(copies.EXERCISES, EXERCISES)
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
    for solution, check in copies.exercises(notebook):
        solution.source = rewrite(solution.source)
        _mark_for_nbgrader(solution, SOLUTION)
        if hidden:
            check.source += hidden.get(check.id, "")
        _mark_for_nbgrader(check, CHECK)
    return notebook


def _mark_for_nbgrader(cell: NotebookNode, traits: Mapping[str, object]) -> None:
    common = {"grade_id": cell.id, "schema_version": 3, "task": False}
    cell.metadata = nbformat.from_dict({"nbgrader": {**traits, **common}})


def hidden_tests(folder: Path, lesson: Path) -> dict[str, str]:
    """Read the hidden tests of a lesson, by the id of the check; without a file there are none."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder} of hidden tests")
    file = folder / f"{lesson.stem}.py"
    text = file.read_text("utf-8") if file.exists() else ""
    tests = {}
    for match in HIDDEN.finditer(text):
        tests[match[1]] = f"\n\n{match[0]}"
    checks = {check.id for _, check in copies.exercises(files.read(lesson))}
    strange = sorted(tests.keys() - checks)
    if strange:
        raise ValueError(f"{file} tests {', '.join(strange)}, not in the lesson")
    return tests


def build(chosen: Sequence[Path], folder: Path = FOLDER) -> None:
    """Rebuild a folder with the students' notebooks of some lessons, and what they need."""
    with drafts.alone(folder), drafts.replaced(folder) as draft:
        notebooks = {}
        for lesson in chosen:
            notebooks[lesson.name] = edition(lesson)
        _write(notebooks, draft)
        (draft / "colab").mkdir()
        for lesson in chosen:
            alone = colab.standalone(lesson, None, edition(lesson, colab.BESIDE))
            nbformat.write(alone, draft / "colab" / lesson.name)
        names = ", ".join(f"`{lesson.name}`" for lesson in chosen)
        text = README.read_text("utf-8").format(lessons=names)
        (draft / "README.md").write_text(text, "utf-8")


def build_course(chosen: Sequence[Path], hidden: Path | None, folder: Path = COURSE) -> int:
    """Rebuild an nbgrader course with some lessons; return the number of hidden tests.

    Raises:
        ValueError: There is no folder `hidden`, a test in it matches no check, or another process
            makes the course.
    """
    tests: dict[Path, dict[str, str]] = {}
    for lesson in chosen:  # before anything is written
        tests[lesson] = hidden_tests(hidden, lesson) if hidden else {}
    with drafts.alone(folder), drafts.replaced(folder) as draft:
        draft.mkdir()
        (draft / "nbgrader_config.py").write_text(CONFIG, "utf-8")
        for lesson in chosen:
            source = edition(lesson, rewrite=copies.marked, hidden=tests[lesson])
            _write({lesson.name: source}, draft / "source" / lesson.stem)
    return sum(map(len, tests.values()))


def _write(notebooks: Mapping[str, NotebookNode], folder: Path) -> None:
    """Write notebooks into a new folder by their names, and the helpers that they need."""
    needed = {Path("requirements.txt")}
    folder.mkdir(parents=True)
    for name, notebook in notebooks.items():
        copies.relink(notebook, None, local_files=notebooks)
        nbformat.write(notebook, folder / name)
        needed.update(imports.reached(notebook))
    for path in needed:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(imports.ROOT / path, target)


if __name__ == "__main__":
    endings.cleanly_on_signals()
    endings.in_one_sentence()
    parser = argparse.ArgumentParser("student")
    parser.add_argument("lessons", nargs="*")
    parser.add_argument("--hidden", type=Path)
    options = parser.parse_args()
    try:
        chosen = files.choose(options.lessons)
        tests = build_course(chosen, options.hidden)
        build(chosen)
    except ValueError as error:
        sys.exit(str(error))
    print(f"{', '.join(path.stem for path in chosen)}: for students in {FOLDER}, which works alone")
    print(f"for nbgrader in {COURSE}, with the solutions and {tests} hidden tests")
    print("Copy both before they are used: they are rebuilt next time.")
