"""The modules of `helpers` that a lesson reaches by imports, and those that they import in turn."""

import tempfile
from modulefinder import ModuleFinder
from pathlib import Path

from nbformat import NotebookNode

from helpers.tooling.lesson import files

ROOT = Path(__file__).resolve().parents[3]
"""The folder that holds `helpers`."""


def reached(notebook: NotebookNode) -> list[Path]:
    """List the modules of `helpers` that the cells of a lesson need, wherever they import them.

    Returns:
        Paths such as `helpers/norms.py` in order, with the packages that hold the modules, and the
        data beside them.
    """
    finder = ModuleFinder([str(ROOT)])
    with tempfile.TemporaryDirectory() as temp_dir:
        script = Path(temp_dir, "lesson.py")
        script.write_text("\n".join(cell.source for cell in files.code_cells(notebook)), "utf-8")
        finder.run_script(str(script))
    sources = (module.__file__ for name, module in finder.modules.items() if name != "__main__")
    paths = (Path(file).relative_to(ROOT) for file in sources if file)
    modules = {path for path in paths if path.parts[0] == "helpers"}
    data = {file for path in modules for file in (ROOT / path).parent.glob("*.toml")}
    return sorted(modules | {file.relative_to(ROOT) for file in data})
