"""The student's edition: stubs without answers, checks that tell wrong from right, a whole run."""

import ast
import re
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from helpers.tooling import student
from helpers.tooling.lesson import copies, files
from tests.tooling.samples import ANSWER, LESSONS, ROOT, cell, good_lesson, quick, save

WRONG = ROOT / "tests" / "exercises"


def solutions(notebook):
    """List the solutions of a lesson, each with its check."""
    pairs = zip(notebook.cells, notebook.cells[1:], strict=False)
    return [(each, check) for each, check in pairs if "solution" in files.tags(each)]


def wrong_answers(stem):
    """Read the wrong answers to a lesson's exercises: id of the solution, verdict, source."""
    file = WRONG / f"{stem}.py"
    parts = re.split(r"(?m)^# %% ([\w-]+): (.*)$", file.read_text() if file.exists() else "")[1:]
    return list(zip(parts[::3], parts[1::3], map(str.strip, parts[2::3]), strict=True))


def printed(each):
    """Return what a cell printed, errors included."""
    return "".join(o.get("text", o.get("evalue", "")) for o in each.outputs)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_exercise_has_a_wrong_answer(path):
    ids = {each.id for each, _ in solutions(files.read(path))}
    assert ids
    assert {name for name, _, _ in wrong_answers(path.stem)} == ids


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_stubs_are_empty_of_the_answer(path):
    derived = student.student(path)
    for solution, check in solutions(files.read(path)):
        stub = ast.parse(cell(derived, solution.id).source)
        for each in ast.walk(stub):
            if isinstance(each, ast.FunctionDef):
                docstring, raising = each.body
                assert ast.get_docstring(each)
                assert isinstance(docstring, ast.Expr)
                assert isinstance(raising, ast.Raise)
            elif isinstance(each, ast.ClassDef):
                assert all(isinstance(part, ast.FunctionDef) for part in each.body[1:])
        assert "#" not in cell(derived, solution.id).source
        assert cell(derived, check.id).source == check.source
        assert "solution" not in files.tags(cell(derived, solution.id))
    for each in derived.cells:
        assert not each.get("outputs")
        assert "hidden cell with a solution" not in each.source


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_student_runs_and_checks_judge(path, tmp_path):
    """One execution: the student's notebook as it is, then each answer before its check."""
    student.build([path], tmp_path)
    notebook = nbformat.read(tmp_path / path.name, 4)
    lesson = files.read(path)
    untouched = len(notebook.cells)
    trials = []
    for solution, check in solutions(lesson):
        given = [(v, source) for name, v, source in wrong_answers(path.stem) if name == solution.id]
        for verdict, source in [*given, (None, solution.source)]:
            notebook.cells += [new_code_cell(source), new_code_cell(check.source)]
            trials.append((check, verdict, notebook.cells[-1]))
    notebook.cells.append(new_code_cell("import helpers\nprint(helpers.__file__)"))
    client = NotebookClient(
        quick(notebook), timeout=600, kernel_name="python3", coalesce_streams=True
    )
    client.execute(cwd=str(tmp_path))

    assert printed(notebook.cells[-1]).strip() == str(tmp_path / "helpers" / "__init__.py")
    for solution, check in solutions(lesson):
        said = printed(cell(notebook, check.id))
        assert re.search(r"^Exercise \d: still to do: write \w", said, re.M), said
        assert ast.parse(solution.source).body[0].name in said
    assert untouched == len(student.student(path).cells)
    for check, verdict, trial in trials:
        said = printed(trial)
        if verdict is None:
            assert said == printed(check), check.id
        else:
            assert re.search(rf"^Exercise \d: {re.escape(verdict)}", said, re.M), (check.id, said)
            assert verdict == "correct" or ": correct" not in said


def test_stub_says_what_to_write():
    assert copies.stub(ANSWER) == ANSWER.replace(
        "return 2 * x", 'raise NotImplementedError("still to do: write answer")'
    )


@pytest.mark.usefixtures("desk")
def test_links_lead_to_lessons_that_are_there(tmp_path):
    for stem in ("01_a", "02_b"):
        notebook = good_lesson()
        notebook.cells[0].source += "\n\nThen [lesson 2](02_b.ipynb)."
        save(notebook, stem)
    student.build(files.choose(["1"]), tmp_path / "one")
    student.build(files.choose([]), tmp_path / "all")
    assert "Then lesson 2." in files.read(tmp_path / "one" / "01_a.ipynb").cells[0].source
    linked = files.read(tmp_path / "all" / "01_a.ipynb").cells[0].source
    assert "Then [lesson 2](02_b.ipynb)." in linked
    assert (tmp_path / "all" / "helpers" / "exercises" / "verdicts.py").exists()
    student.build(files.choose(["2"]), tmp_path / "all")
    assert sorted(path.name for path in (tmp_path / "all").glob("*.ipynb")) == ["02_b.ipynb"]


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("source", ["def answer(x) return x", "%time x = 1"])
def test_solution_that_is_not_python_is_refused(source):
    notebook = good_lesson()
    cell(notebook, "answer").source = source
    path = save(notebook, "01_a")
    sentence = r"^01_a.ipynb, cell 8 \(answer\): a solution is Python, this one is not: [^\n]*$"
    with pytest.raises(ValueError, match=sentence):
        student.student(path)


def test_unknown_lesson_is_refused(desk):
    save(good_lesson(), "01_a")
    command = [sys.executable, "-m", "helpers.tooling.student", "9"]
    done = subprocess.run(command, cwd=desk, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "there is no lesson '9', there are 01_a\n")
    assert not (desk / "build").exists()
