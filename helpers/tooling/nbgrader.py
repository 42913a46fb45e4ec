"""Lessons as assignments of nbgrader, for a school that has it.

Run from the folder that holds `notebooks/`, `python -m helpers.tooling.nbgrader 2` makes
build/nbgrader/ anew: a course with lesson 2, and with all lessons if none is named. nbgrader makes
the students' edition of it (`nbgrader generate_assignment 02_legacy_functorch`), collects answers
and grades them, with a point for each exercise. With `--hidden FOLDER`, it has the hidden tests
that `helpers.tooling.grade` describes, without their lists of names that an answer may not use.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nbformat import NotebookNode

from helpers.tooling import student
from helpers.tooling.grading import hidden_tests
from helpers.tooling.grading.submissions import exercises
from helpers.tooling.lesson import copies, drafts, files
from helpers.tooling.lesson.execution import end_cleanly_on_signals

FOLDER = Path("build/nbgrader")
CONFIG = f"""\
c = get_config()
c.CourseDirectory.course_id = "per-sample-gradients"
c.ClearSolutions.code_stub = {{"python": 'raise NotImplementedError("{copies.STILL_TO_DO}this")'}}
c.ExecutePreprocessor.timeout = 600  # seconds for a cell; some of the lessons' take longer than 30
"""
HIDDEN = "\n\n### BEGIN HIDDEN TESTS\n{}\n### END HIDDEN TESTS"
KINDS = {
    "solution": {"solution": True, "grade": False, "locked": False},
    "check": {"solution": False, "grade": True, "locked": True, "points": 1},
}


def source(lesson: Path, hidden: Mapping[int, hidden_tests.Test]) -> NotebookNode:
    """Derive what nbgrader takes as its source: solutions between marks, checks that give a point.

    Args:
        lesson: The lesson.
        hidden: Its hidden tests, by the number of the exercise.
    """
    notebook = student.reworded(lesson)
    for each in exercises(notebook):
        each.solution.source = copies.marked(each.solution.source)
        if each.number in hidden:
            each.check.source += HIDDEN.format(hidden[each.number].source.strip())
        for kind, traits in KINDS.items():
            cell = getattr(each, kind)
            cell.metadata = {
                "nbgrader": traits | {"grade_id": cell.id, "schema_version": 3, "task": False}
            }
    return notebook


def build(chosen: Sequence[Path], hidden_folder: Path | None, folder: Path = FOLDER) -> None:
    """Make a course folder anew with some lessons.

    Raises:
        ValueError: There are no hidden tests of a lesson, or one of them is of no exercise.
    """
    sources = {}
    for lesson in chosen:
        hidden = hidden_tests.read(hidden_folder, lesson, exercises(files.read(lesson)))
        sources[lesson] = source(lesson, hidden)
    with drafts.replaced(folder) as draft:
        draft.mkdir()
        (draft / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
        for lesson, notebook in sources.items():
            student.write({lesson.name: notebook}, draft / "source" / lesson.stem)


if __name__ == "__main__":
    end_cleanly_on_signals()
    parser = argparse.ArgumentParser("nbgrader")
    parser.add_argument("lessons", nargs="*")
    parser.add_argument("--hidden", type=Path)
    given = parser.parse_args()
    try:
        chosen = files.choose(given.lessons)
        build(chosen, given.hidden)
    except ValueError as error:
        sys.exit(str(error))
    print(f"a course for nbgrader, in {FOLDER}: {', '.join(each.stem for each in chosen)}")
