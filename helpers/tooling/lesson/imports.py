"""The modules of `helpers` that a lesson reaches by imports, and those that they import in turn."""

import tempfile
from modulefinder import ModuleFinder
from pathlib import Path

from nbformat import NotebookNode

from helpers.tooling.lesson import files

PACKAGE = Path(__file__).resolve().parents[2]
"""The folder `helpers`."""
ROOT = PACKAGE.parent


def reached(notebook: NotebookNode) -> list[Path]:
    """List the modules of `helpers` that the cells of a lesson need, wherever they import them.

    Returns:
        Paths such as `helpers/norms.py` in order, with the packages that hold the modules, and the
        data beside them.
    """
    cells = [cell.source for cell in files.code_cells(notebook)]
    finder = ModuleFinder([str(ROOT)])
    with tempfile.TemporaryDirectory() as temp_dir:
        script = Path(temp_dir, "lesson.py")
        script.write_text("\n".join(cells), "utf-8")
        finder.run_script(str(script))
    needed = set()
    for module in finder.modules.values():
        file = Path(module.__file__ or "")  # a built-in module has none
        if file.is_relative_to(PACKAGE):
            needed.add(file.relative_to(ROOT))
            for data in file.parent.glob("*.toml"):
                needed.add(data.relative_to(ROOT))
    return sorted(needed)
