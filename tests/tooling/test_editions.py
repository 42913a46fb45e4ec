"""What editions of lessons share: the modules they need, their links, and what a copy says."""

import pytest
from nbformat.v4 import new_markdown_cell

from helpers.tooling import colab, student
from helpers.tooling.lesson import copies, form
from tests.tooling.samples import LESSONS, cell, code, good_lesson, lesson, save

EDITIONS = {"colab": lambda path: colab.standalone(path, None), "student": student.student}


def modules(source: str) -> list[str]:
    """List the helper modules that a cell needs, without those that these import."""
    needed = copies.needed(lesson(code("here", source)))
    return [path.as_posix() for path in needed]


IMPORTS = {
    "a module": "import helpers.text",
    "from the package": "from helpers import text",
    "a name": "from helpers.text import shape",
    "all names": "from helpers.text import *",
    "in a function": "def load():\n    from helpers import text",
    "after a magic": "%matplotlib inline\nfrom helpers import text",
    "in a timed cell": "\n%%time\nfrom helpers import text",
    "after a command": "!ls\nfiles = !ls\nlen?\nfrom helpers import text",
}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Stand in for the helpers with a package that holds a module and a package."""
    for name, source in {
        "__init__.py": "",
        "text.py": "def shape(): ...",
        "limits/__init__.py": "from helpers import text\nCASES = []",
        "limits/slow.py": "",
        "broken.py": "def",
        "lost.py": "import helpers.nowhere",
    }.items():
        path = tmp_path / "helpers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    monkeypatch.setattr(copies, "HELPERS", tmp_path / "helpers")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("source", IMPORTS.values(), ids=IMPORTS.keys())
def test_imports_are_found(source):
    assert modules(source) == ["__init__.py", "text.py"]


@pytest.mark.usefixtures("small")
def test_what_is_imported_in_turn_is_found_and_nothing_else():
    limits = ["__init__.py", "limits/__init__.py", "text.py"]
    assert modules("from helpers.limits import CASES") == limits
    slow = ["__init__.py", "limits/__init__.py", "limits/slow.py", "text.py"]
    assert modules("from helpers.limits import slow") == slow
    assert modules("import torch, helpersome\n%%nothing") == []


REFUSED = {
    "not Python": ("x = = 1", r"cell 3 \(here\) is not Python, see `x = = 1`: invalid syntax"),
    "module": ("import helpers.txt", r"cell 3 \(here\) imports helpers.txt, which is not there"),
    "from": ("from helpers import txt", r"cell 3 \(here\) imports helpers.txt, which is not there"),
    "name": ("from helpers.text import Form", r"cell 3 \(here\) imports helpers.text.Form, which"),
    "below": ("import helpers.text.a", r"cell 3 \(here\) imports helpers.text.a, which is not"),
    "in turn": ("from helpers import lost", "helpers/lost.py imports helpers.nowhere, which is"),
    "helper": ("from helpers import broken", "helpers/broken.py is not Python, see `def`: "),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("source", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_followed_is_refused(source, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}"):
        modules(source)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("source", ["x = = 1", "from helpers import txt"])
@pytest.mark.parametrize("command", ["colab", "student"])
def test_lesson_that_will_not_do_is_named_in_one_sentence(command, source, capsys, tmp_path):
    notebook = good_lesson()
    notebook.cells.append(code("here", source))
    path = save(notebook, "01_a")
    if command == "colab":
        assert colab.main([]) == 2
        shown = capsys.readouterr().err
    else:
        with pytest.raises(ValueError, match="not") as raised:
            student.build([path], tmp_path / "student")
        shown = f"{raised.value}\n"
    assert shown.startswith("01_a.ipynb, cell 19 (here) i")
    assert shown.count("\n") == 1
    assert not (tmp_path / "build").exists()
    assert not (tmp_path / "student").exists()


def test_links_stay_where_the_lesson_is_there():
    notebook = lesson(new_markdown_cell("[A](01_a.ipynb#x), [B](02_b.ipynb)", id="links"))
    copies.relink(notebook, None, there=["01_a.ipynb"])
    assert cell(notebook, "links").source == "[A](01_a.ipynb#x), B"
    copies.relink(notebook, "https://example.org/")
    assert cell(notebook, "links").source == "[A](https://example.org/01_a.ipynb), B"


@pytest.mark.parametrize("derive", EDITIONS.values(), ids=EDITIONS.keys())
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_copy_says_what_it_is_and_how_to_find_its_helpers(path, derive):
    copy = derive(path)
    assert copy.cells[0].source.count(copies.COPY) == 1
    assert "`make bench`, `tests/` or `notebooks/`" in copies.COPY
    text = "\n".join(each.source for each in copy.cells)
    assert copies.LOST not in text
    beside = colab.BESIDE if "colab-start" in [each.id for each in copy.cells] else student.BESIDE
    assert f'raise FileNotFoundError("no folder `helpers` here or above: {beside}")' in text


def test_set_up_says_what_copies_replace():
    assert copies.LOST in form.SETUP
