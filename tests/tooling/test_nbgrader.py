"""The course for nbgrader: nothing of a solution is lost or released, and nbgrader gives points."""

import ast
import csv
import functools
import os
import shutil
import subprocess
import sys

import nbformat
import pytest

from helpers.tooling import nbgrader
from helpers.tooling.grading import hidden_tests, submissions
from helpers.tooling.lesson import copies, files
from tests.support import answers
from tests.tooling.samples import LESSONS, ROOT, cell

PACKAGES = ["nbgrader==0.9.6", "alembic==1.18.4", "mako==1.4.3", "rapidfuzz==3.14.6"]
"""What nbgrader's commands need besides what is installed; its pages need more."""


@pytest.fixture(scope="session")
def run_nbgrader():
    """Install nbgrader beside what is there, or find it installed; return what runs it."""
    folder = ROOT / "build" / "-".join(PACKAGES)
    if not folder.exists():
        draft = folder.with_suffix(".part")
        shutil.rmtree(draft, ignore_errors=True)
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", draft]
        subprocess.run([*install, *PACKAGES], check=True)
        draft.rename(folder)
    path = {"PYTHONPATH": str(folder), "PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}"}
    return functools.partial(subprocess.run, check=True, capture_output=True, env=os.environ | path)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_source_is_the_lesson_with_marks(path):
    asked = submissions.exercises(files.read(path))
    made = nbgrader.source(path, {})
    for each in asked:
        marked = cell(made, each.solution.id).source
        assert ast.dump(ast.parse(marked)) == ast.dump(ast.parse(each.solution.source))
        open_lines, inside = [], False
        for line in marked.splitlines():
            inside |= "### BEGIN SOLUTION" in line
            open_lines += [] if inside or not line.strip() else [line]
            inside &= "### END SOLUTION" not in line
        stub = copies.stub(each.solution.source).splitlines()
        assert open_lines == [line for line in stub if line.strip() and "raise Not" not in line]
    points = [each.metadata.get("nbgrader", {}).get("points", 0) for each in made.cells]
    assert sum(points) == len(asked)
    assert len({each.id for each in made.cells}) == len(made.cells)  # they are the grade_ids


@pytest.mark.whole
def test_nbgrader_gives_a_point_for_each_correct_answer(run_nbgrader, tmp_path):
    path = LESSONS[1]
    course = tmp_path / "course"
    nbgrader.build([path], ROOT / "tests" / "hidden", course)
    ask = functools.partial(run_nbgrader, cwd=course)
    ask([sys.executable, "-m", "nbgrader", "generate_assignment", path.stem])
    released = nbformat.read(course / "release" / path.stem / path.name, 4)

    notebook = files.read(path)
    known = answers.answers(notebook, answers.read(ROOT / "tests/exercises" / f"{path.stem}.py"))
    asked = submissions.exercises(notebook)
    hidden = hidden_tests.read(ROOT / "tests" / "hidden", path, asked)
    assert not any("HIDDEN" in each.source for each in released.cells)
    wrong = next(each for each in known if each.verdict.startswith("right shape, wrong values"))
    right = {each.solution.id: each.solution.source for each in asked}
    handed_in = {"none": {}, "right": right, "wrong": right | {wrong.name.split()[0]: wrong.source}}
    # An answer that is fitted to the check of the lesson fails the hidden test alone.
    first = asked[0]
    fitted = "    if len(grads[0]) == 3:\n        return {}\n"
    body = copies.marked(first.solution.source).replace("    ### BEGIN SOLUTION\n", fitted)
    assert 1 in hidden
    handed_in["fitted"] = right | {first.solution.id: body}
    for student, own in handed_in.items():
        copy = nbformat.from_dict(released)
        for identity, source in own.items():
            cell(copy, identity).source = source
        folder = course / "submitted" / student / path.stem
        folder.mkdir(parents=True)
        nbformat.write(copy, folder / path.name)
    ask([sys.executable, "-m", "nbgrader", "autograde", path.stem])
    ask([sys.executable, "-m", "nbgrader", "export"])

    rows = csv.DictReader((course / "grades.csv").open())
    points = {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in rows}
    full = float(len(asked))
    assert points == {
        "none": (0, full),
        "right": (full, full),
        "wrong": (full - 1, full),
        "fitted": (full - 1, full),
    }
