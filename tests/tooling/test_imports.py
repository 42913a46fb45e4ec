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
TEXT = ["helpers/__init__.py", "helpers/text.py"]
LIMITS = [f"helpers/{name}" for name in ("__init__.py", "limits/__init__.py", "text.py")]
LIMITS.append("helpers/limits/entries.toml")


REACHED = {
    "import helpers.text": TEXT,
    "from helpers import text": TEXT,
    "from helpers.text import shape": TEXT,
    "def load():\n    from helpers import text": TEXT,
    "from helpers.limits import cases": sorted(LIMITS),
    "from helpers.limits import slow": sorted([*LIMITS, "helpers/limits/slow.py"]),
    "import torch, helpersome": [],
}


def test_imports_are_followed(tmp_path, monkeypatch):
    for name, text in SOURCES.items():
        path = tmp_path / "helpers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(imports, "ROOT", tmp_path)
    for source, modules in REACHED.items():
        found = imports.reached(lesson(code("here", source)))
        assert [path.as_posix() for path in found] == modules, source
