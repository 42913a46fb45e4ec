"""What editions of lessons share: the modules they need, their links, and what a copy says."""

import subprocess
import sys
from pathlib import Path

import pytest
from nbformat.v4 import new_markdown_cell, new_output

from helpers.tooling import colab, student
from helpers.tooling.lesson import copies, files, form, reach
from helpers.tooling.lesson import modules as helper_modules
from tests.tooling.samples import LESSONS, cell, code, good_lesson, lesson, save

EDITIONS = {"colab": lambda path: colab.standalone(path, None), "student": student.student}


def modules(source: str) -> list[str]:
    """List the helper modules that a cell needs, without those that these import."""
    needed = reach.needed(lesson(code("here", source)))
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
    monkeypatch.setattr(helper_modules, "HELPERS", tmp_path / "helpers")


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


SHAPES = '''\
"""Shapes of tensors.

With more to say.
"""

from math import inf, nan

# What counts
# as a tensor.
LIMIT = inf
"""The largest."""
UNUSED = nan


def outer(x):
    """Call the other.

    Args:
        x: Anything.
    """
    from helpers import late

    return _inner(x) + late.value(LIMIT)


def _inner(x):
    return x


def unused(x):
    return helpers_of(x)


class Register:
    """Things by name."""

    things = {}


Register.things["a"] = 1
'''
CARRIED = '''\
"""Shapes of tensors."""

from math import inf

# What counts
# as a tensor.
LIMIT = inf
"""The largest."""

def outer(x):
    """Call the other."""
    from helpers import late

    return _inner(x) + late.value(LIMIT)

def _inner(x):
    return x

class Register:
    """Things by name."""
    things = {}

Register.things["a"] = 1'''


@pytest.fixture
def shapes(tmp_path, monkeypatch):
    """Stand in for the helpers with modules that hold more than a lesson uses."""
    folder = tmp_path / "helpers"
    (folder / "pictures").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "shapes.py").write_text(SHAPES)
    (folder / "late.py").write_text("def value(x):\n    return x\n\n\ndef other(x): ...\n")
    (folder / "pictures" / "__init__.py").write_text(
        "from helpers.pictures import dots\nfrom helpers.pictures.bars import bars, thick\n"
    )
    (folder / "pictures" / "bars.py").write_text("def bars(): ...\n\n\ndef thick(): ...\n")
    (folder / "pictures" / "dots.py").write_text("def dots(): ...\n")
    monkeypatch.setattr(helper_modules, "HELPERS", folder)


def carried(*sources: str) -> dict[str, str]:
    """Write the modules that the cells of a copy need."""
    cells = [code(f"cell-{number}", source) for number, source in enumerate(sources)]
    return {path.as_posix(): text for path, text in reach.carried(lesson(*cells)).items()}


@pytest.mark.usefixtures("shapes")
def test_copy_carries_the_definitions_that_it_reaches():
    """Those that cells name, those that these name, and what an import does besides."""
    found = carried("from helpers import shapes", "print(shapes.outer(1))")
    value = "def value(x):\n    return x"
    assert found == {"__init__.py": "", "late.py": value, "shapes.py": CARRIED}
    values = {}
    exec(found["late.py"], values)
    assert values["value"](3) == 3


@pytest.mark.usefixtures("shapes")
def test_copy_leaves_out_methods_that_nothing_calls(tmp_path):
    lines = [
        "class A:",
        '    """Doc."""',
        "",
        "    @property",
        "    def a(self): ...",
        "",
        "    b = 1",
    ]
    source = "\n".join(["from math import pi", "", *lines]).replace("...", "return pi")
    (tmp_path / "helpers" / "late.py").write_text(source)
    cell = code("here", "from helpers.late import A")
    found = reach.carried(lesson(cell), ["A.a"])
    assert found[Path("late.py")] == 'class A:\n    """Doc."""\n    b = 1'


@pytest.mark.usefixtures("shapes")
@pytest.mark.parametrize(
    "cells",
    [
        ("from helpers import pictures", "pictures.bars()"),
        ("from helpers.pictures import bars",),
        ("import helpers.pictures as p\np.bars()",),
        ("def draw():\n    from helpers import pictures\n    return pictures.bars()",),
    ],
)
def test_package_leads_to_the_modules_that_are_used(cells):
    assert carried(*cells) == {
        "__init__.py": "",
        "pictures/__init__.py": "from helpers.pictures.bars import bars",
        "pictures/bars.py": "def bars(): ...",
    }


@pytest.mark.usefixtures("shapes")
@pytest.mark.parametrize(
    "source",
    [
        "from helpers import pictures\nprint(pictures)",
        "from helpers import pictures\nprint(pictures.__name__)",
        "import helpers.pictures",
        "from helpers.pictures import *",
    ],
)
def test_module_that_is_used_as_a_whole_is_carried_whole(source):
    found = carried(source)
    assert found["pictures/__init__.py"].count("import") == 2
    assert {"pictures/bars.py", "pictures/dots.py"} <= found.keys()
    assert "thick" in found["pictures/bars.py"]


def test_nothing_that_a_copy_carries_names_what_it_left_behind(tmp_path):
    for path in LESSONS:
        for module, source in reach.carried(files.read(path), colab.HANDED_OVER).items():
            file = tmp_path / path.stem / "helpers" / module
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{source}\n")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,F401,E9"]
    done = subprocess.run(
        [*command, "--per-file-ignores", "__init__.py:F401", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_links_to_headings_lead_to_cells():
    table = new_output("display_data", {"text/markdown": "[first](#first-part) [none](#nowhere)"})
    notebook = lesson(
        new_markdown_cell("See [there](#first-part).", id="see"),
        code("index", "show_index()"),
        new_markdown_cell("Text\n\n## first part\n\nMore", id="here"),
    )
    cell(notebook, "index").outputs = [table]
    copies.relink_headings(notebook, "#scrollTo=")
    assert cell(notebook, "see").source == "See [there](#scrollTo=here)."
    assert cell(notebook, "index").cell_type == "markdown"
    assert cell(notebook, "index").source == "[first](#scrollTo=here) [none](#nowhere)"


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
    beside = colab.BESIDE if "colab-ready" in [each.id for each in copy.cells] else student.BESIDE
    assert f'raise FileNotFoundError("no folder `helpers` here or above: {beside}")' in text


def test_set_up_says_what_copies_replace():
    assert copies.LOST in form.SETUP
