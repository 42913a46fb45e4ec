"""The course for nbgrader: ten sorts of submissions, by the commands of the teachers' page."""

import csv
import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest

from helpers.tooling import student
from helpers.tooling.lesson import copies, files
from tests.support.samples import LESSONS, ROOT, cell

(LESSON,) = (path for path in LESSONS if path.stem == "02_legacy_functorch")
PACKAGES = ["nbgrader==0.9.6", "alembic==1.18.4", "mako==1.4.3", "rapidfuzz==3.14.6"]
"""What nbgrader's commands need besides what is installed."""
COMMANDS = re.findall(
    r"(?m)^nbgrader .*?\S(?=\s*(?:#|$))", (LESSON.parent / "teaching.md").read_text("utf-8")
)
PATCH = """\
class Silent:
    __init__ = lambda *args, **given: None
    __enter__ = lambda self: print
    __exit__ = lambda *error: True

exercises.check, named_gradients = Silent, print"""
"""What counts as an answer to each exercise, whatever the others are."""
MARKS = {
    "right": 3,
    "half right": 1,  # one answer is fitted to the check, and one is not there
    "empty": 0,
    "syntax error": 2,
    "endless loop": 2,
    "checks deleted": 3,
    "checks patched": 3,  # for stubs: nbgrader cannot stop it
    "exits": 0,
    "truncated": 0,
    "another name": 0,
}
NOT_GRADED = {"exits", "truncated", "another name"}
"""All their answers but one are right; nbgrader's table does not tell."""


@pytest.fixture(scope="module")
def environment():
    folder = ROOT / "build" / "-".join(PACKAGES)
    if not folder.exists():
        draft = folder.with_suffix(".part")
        shutil.rmtree(draft, ignore_errors=True)
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", draft]
        subprocess.run(install + PACKAGES, check=True)
        draft.rename(folder)
    path = f"{folder / 'bin'}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    return dict(os.environ, PYTHONPATH=str(folder), PATH=path)


def handed_in(name, folder):
    """Make what a student hands in, as text, from what was given to all in a folder."""
    given = folder / "colab" if name == "half right" else folder
    notebook = nbformat.read(given / LESSON.name, 4)
    answers = {}
    for solution, _ in copies.exercises(files.read(LESSON)):
        answers[solution.id] = solution.source
    first = answers["solution-1"]
    changed = {
        "half right": ("return {", "if len(grads[0]) == 3: return {}\n    return {"),
        "syntax error": ("):", ")"),
        "endless loop": ("return {", "while True: {"),
        "exits": ("return {", "return __import__('os')._exit(0) or {"),
    }
    if name in changed:
        old, new = changed[name]
        answers["solution-1"] = first.replace(old, new, 1)
    # Where there is no answer, the stub stays.
    if name == "half right":
        del answers["solution-3"]
    if name == "empty":
        answers = {}
    if name == "checks patched":
        answers = {"solution-1": PATCH}
    for identity, source in answers.items():
        cell(notebook, identity).source = source
    if name == "checks deleted":
        notebook.cells = [each for each in notebook.cells if not each.id.startswith("check-")]
    text = nbformat.writes(notebook)
    return text[: len(text) // 2] if name == "truncated" else text


def sources(notebook):
    return [each.source.rstrip() for each in files.code_cells(notebook)]


@pytest.mark.whole
def test_ten_sorts_of_submissions_get_their_marks(environment, tmp_path):
    given, course = tmp_path / "given", tmp_path / "course"
    student.build([LESSON], given)
    assert student.build_course([LESSON], ROOT / "tests" / "lessons" / "hidden", course) == 3
    archive = course / "downloaded" / LESSON.stem / "archive"
    archive.mkdir(parents=True)
    for name in MARKS:
        stem = "homework" if name == "another name" else LESSON.stem
        (archive / f"{name}_{stem}.ipynb").write_text(handed_in(name, given), "utf-8")

    done = []
    for command in COMMANDS:
        ended = subprocess.run(
            command, shell=True, cwd=course, env=environment, capture_output=True, encoding="utf-8"
        )
        done.append(ended)

    # The third one, which grades, says that some could not be.
    assert [each.returncode for each in done] == [0, 0, 1, 0, 0], done
    released = files.read(course / "release" / LESSON.stem / LESSON.name)
    for got, stub in zip(sources(released), sources(student.edition(LESSON)), strict=True):
        assert got == re.sub(r'write \w+"', 'write this"', stub)
    marks = {}
    table = (course / "grades.csv").read_text("utf-8")
    for row in csv.DictReader(table.splitlines()):
        marks[row["student_id"]] = float(row["score"])
        assert float(row["max_score"]) == 3
    assert marks == MARKS
    said = re.findall(r"There was an error processing .* for student '(.+)'", done[2].stderr)
    assert set(said) == NOT_GRADED
    pages = {path.parts[-3] for path in course.glob("feedback/*/*/*.html")}
    assert pages == MARKS.keys() - NOT_GRADED
