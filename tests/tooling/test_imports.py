"""The modules of the helpers that a lesson reaches: found by its imports, and theirs, and whole."""

import pytest

from helpers.tooling.lesson import files, imports
from tests.tooling.samples import LESSONS, code, lesson

SOURCES = {
    "__init__.py": "",
    "text.py": "def shape(): ...",
    "limits/__init__.py": "def cases():\n    from helpers import text",
    "limits/slow.py": "import torch, helpersome",
}
TEXT = ["helpers/__init__.py", "helpers/text.py"]
LIMITS = ["helpers/__init__.py", "helpers/limits/__init__.py", "helpers/text.py"]


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import helpers.text", TEXT),
        ("from helpers import text", TEXT),
        ("from helpers.text import shape", TEXT),
        ("def load():\n    from helpers import text", TEXT),
        ("from helpers.limits import cases", LIMITS),
        ("from helpers.limits import slow", sorted([*LIMITS, "helpers/limits/slow.py"])),
        ("import torch, helpersome", []),
    ],
)
def test_imports_are_followed(source, modules, tmp_path, monkeypatch):
    for name, text in SOURCES.items():
        path = tmp_path / "helpers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(imports, "ROOT", tmp_path)
    found = imports.reached(lesson(code("here", source)))
    assert [path.as_posix() for path in found] == modules


def test_lessons_reach_what_they_need_and_no_tooling():
    reached = {
        path.stem[:2]: {each.as_posix() for each in imports.reached(files.read(path))}
        for path in LESSONS
    }
    assert "helpers/jacobians.py" in reached["04"]
    assert "helpers/jacobians.py" not in reached["01"]
    for modules in reached.values():
        assert not [each for each in modules if each.startswith("helpers/tooling")]
