"""The modules of the helpers that a lesson reaches: found by its imports, and theirs, and whole."""

from helpers.tooling.lesson import imports
from tests.tooling.samples import code, lesson

SOURCES = {
    "__init__.py": "",
    "text.py": "def shape(): ...",
    "limits/__init__.py": "def cases():\n    from helpers import text",
    "limits/entries.toml": "",
    "limits/slow.py": "import torch, helpersome",
}
REACHED = {
    "def load():\n    from helpers import text": "__init__.py text.py",
    "import helpers.limits": "__init__.py limits/__init__.py limits/entries.toml text.py",
    "from helpers.limits import slow": " ".join(sorted(SOURCES)),
    "import torch, helpersome": "",
}


def test_imports_are_followed(tmp_path, monkeypatch):
    for name, text in SOURCES.items():
        path = tmp_path / "helpers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(imports, "ROOT", tmp_path)
    for source, names in REACHED.items():
        found = imports.reached(lesson(code("here", source)))
        assert [path.as_posix() for path in found] == [f"helpers/{n}" for n in names.split()]
