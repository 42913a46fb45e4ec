"""The student's edition and the course: stubs without answers, a whole run, no answer lost."""

import ast
import re
import shutil

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from helpers.tooling import student
from helpers.tooling.lesson import copies, files
from helpers.tooling.lesson.execution import execute
from tests.lessons.tried import SIZES
from tests.support.samples import LESSONS, cell, good_lesson, save


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_editions_differ_from_the_lesson_in_their_solutions(path):
    given = student.edition(path)
    kept = student.edition(path, rewrite=copies.marked)  # the teacher's, for nbgrader
    for solution, check in copies.exercises(files.read(path)):
        stub = cell(given, solution.id).source
        marked = cell(kept, solution.id).source
        assert "#" not in stub
        assert ast.dump(ast.parse(marked)) == ast.dump(ast.parse(solution.source))
        cut = re.sub(r"(?s)### BEGIN SOLUTION.*?### END SOLUTION", "raise", marked)
        assert cut == re.sub(r"raise Not.*", "raise", stub)
        assert cell(given, check.id).source == check.source
        assert cell(kept, check.id).source == check.source
    for each in given.cells:
        assert not each.get("outputs")


@pytest.mark.whole
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_student_runs_to_the_end_in_an_empty_folder(path, tmp_path):
    student.build([path], tmp_path)
    lesson = tmp_path / path.name
    notebook = nbformat.read(lesson, 4)
    notebook.cells.append(new_code_cell("import helpers\nprint(helpers.__file__)"))
    nbformat.write(notebook, lesson)

    done = execute(lesson, lesson, SIZES.get(path.stem))

    assert done.failure is None
    if path == LESSONS[0]:  # its copy for Colab, in a folder without helpers
        shutil.move(tmp_path / "colab", tmp_path.parent / f"{path.stem}-colab")
        alone = tmp_path.parent / f"{path.stem}-colab" / path.name
        assert execute(alone, alone).failure is None
    last = done.notebook.cells[-1]
    assert last.outputs[0].text.strip() == str(tmp_path / "helpers" / "__init__.py")
    for solution, check in copies.exercises(files.read(path)):
        outputs = cell(done.notebook, check.id).outputs
        said = "".join(output.get("text", "") for output in outputs)
        name = ast.parse(solution.source).body[0].name
        assert re.search(rf"^Exercise \d+: still to do: write {name}", said, re.M), said


@pytest.mark.usefixtures("desk")
def test_links_lead_to_lessons_that_are_there(tmp_path):
    given = tmp_path / "given"
    for stem in ("01_a", "02_b"):
        notebook = good_lesson()
        notebook.cells[0].source += "\n\nThen [lesson 2](02_b.ipynb#x)."
        save(notebook, stem)
    # Lesson 2 is among those that are given, or it is not.
    for names, link in ([], "[lesson 2](02_b.ipynb#x)"), (["1"], "lesson 2"):
        student.build(files.choose(names), given)
        title = files.read(given / "01_a.ipynb").cells[0]
        assert f"Then {link}." in title.source
    assert [path.name for path in given.glob("*.ipynb")] == ["01_a.ipynb"]
    assert "`01_a.ipynb`" in (given / "README.md").read_text("utf-8")


HIDDEN = """\
### BEGIN HIDDEN TESTS
# check-{}
assert answer(1) == 2
### END HIDDEN TESTS
"""


def test_hidden_tests_of_no_check_are_refused(desk):
    save(good_lesson(), "01_a")
    (desk / "01_a.py").write_text(HIDDEN.format(2), "utf-8")
    assert student.build_course(files.choose([]), desk) == 1
    kept = files.read(student.COURSE / "source" / "01_a" / "01_a.ipynb")
    assert cell(kept, "check-2").source.endswith(HIDDEN.format(2).strip())
    (desk / "01_a.py").write_text(HIDDEN.format(9), "utf-8")
    for folder, word in ((desk, "check-9"), (desk / "none", "no folder")):
        with pytest.raises(ValueError, match=word):
            student.build_course(files.choose([]), folder, desk / "refused")
    assert not (desk / "refused").exists()
