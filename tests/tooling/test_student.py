"""The student's edition: stubs without answers, checks that tell wrong from right, a whole run."""

import ast
import re
import shutil

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from helpers.tooling import student
from helpers.tooling.lesson import copies, files
from helpers.tooling.lesson.execution import execute
from tests.support import answers
from tests.tooling.samples import LESSONS, SIZES, cell, good_lesson, save


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_edition_holds_no_answer(path):
    derived = student.student(path)
    for solution, check in answers.exercises(files.read(path)):
        stub = cell(derived, solution.id)
        assert stub.source == copies.stub(solution.source)
        assert "#" not in stub.source
        assert "solution" not in files.tags(stub)
        assert cell(derived, check.id).source == check.source
    _, alone = student.editions(path)
    for each in [*derived.cells, *alone.cells]:
        assert not each.get("outputs")
        assert not each.source.startswith("# @title Solution")
        assert "hidden cell with a solution" not in each.source


@pytest.mark.whole
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_student_runs_to_the_end_in_an_empty_folder(path, tmp_path):
    student.build([path], tmp_path)
    lesson = tmp_path / path.name
    notebook = nbformat.read(lesson, 4)
    notebook.cells.append(new_code_cell("import helpers\nprint(helpers.__file__)"))
    nbformat.write(notebook, lesson)

    done = execute(lesson, SIZES.get(path.stem, {}))

    assert done.failure is None
    if path == LESSONS[0]:  # its copy for Colab, in a folder without helpers
        shutil.move(tmp_path / "colab", tmp_path.parent / f"{path.stem}-colab")
        assert execute(tmp_path.parent / f"{path.stem}-colab" / path.name, {}).failure is None
    *cells, last = files.code_cells(done.notebook)
    assert last.outputs[0].text.strip() == str(tmp_path / "helpers" / "__init__.py")
    by_id = {each.id: each for each in cells}
    for solution, check in answers.exercises(files.read(path)):
        said = "".join(output.get("text", "") for output in by_id[check.id].outputs)
        name = ast.parse(solution.source).body[0].name
        assert re.search(rf"^Exercise \d+: still to do: write {name}", said, re.M), said


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
    assert "`01_a.ipynb`, `02_b.ipynb`" in (tmp_path / "all" / "README.md").read_text()
    student.build(files.choose(["2"]), tmp_path / "all")
    assert sorted(path.name for path in (tmp_path / "all").glob("*.ipynb")) == ["02_b.ipynb"]
