"""Lessons as `make test` tries them: with small sizes, and each answer appended to its lesson.

`python -m tests.lessons.tried 3 04` writes copies of these lessons, or of all, into build/tried/,
with their saved outputs, for `pytest --nbval build/tried`. With parameters, as in `3 seed=1`, they
are executed only: saved outputs are those of the default values.
"""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import nbformat
import papermill
from nbformat.v4 import new_code_cell

from helpers.tooling.lesson import drafts, files, parameters
from tests.lessons import answers

FOLDER = Path("build/tried")
SIZES = tomllib.loads(Path(__file__).with_name("sizes.toml").read_text("utf-8"))
"""The parameters that make a lesson shorter in tests, by its name."""

GOOD_GUEST = """\
import sys
from pathlib import Path

foreign = [name for name in sys.modules if name.startswith(("helpers.tooling", "tests."))]
left = [str(path) for path in Path().iterdir() if path.suffix != ".ipynb"]
assert not foreign + left, f"imported: {foreign}, left behind: {left}"
"""
JUDGED = """\
import re
verdicts = re.findall(r"(?m)^Exercise \\d+: (.*)$", said.stdout)
assert verdicts and verdicts[-1].startswith({verdict!r}), {name!r} + said.stdout
"""
"""The last verdict counts: an answer may print some of its own before it."""


def write(lesson: Path, copy: Path, assignments: Sequence[str] = ()) -> None:
    values = SIZES.get(lesson.stem, {}) | parameters.check(lesson, assignments)
    notebook = papermill.execute_notebook(lesson, copy, values, prepare_only=True)
    notebook.cells.append(new_code_cell(GOOD_GUEST, id="good-guest"))
    for check, (name, verdict, source) in answers.to_try(notebook, answers.read(lesson.stem)):
        judged = JUDGED.format(name=f"{name}:\n", verdict=verdict)
        notebook.cells.append(new_code_cell(source, id=name))
        checked = f"%%capture said\n{check.source}"
        notebook.cells.append(new_code_cell(checked, id=f"{name}-checked"))
        notebook.cells.append(new_code_cell(judged, id=f"{name}-judged"))
    if assignments:  # after the answers, which are found by their tags
        for cell in files.code_cells(notebook):
            cell.metadata["tags"] = ["nbval-ignore-output"]
    nbformat.write(notebook, copy)


if __name__ == "__main__":
    names, assignments = [], []
    for argument in sys.argv[1:]:
        if "=" in argument:
            assignments.append(argument)
        else:
            names.append(argument)
    try:
        chosen = files.choose(names)
    except ValueError as error:
        sys.exit(str(error))
    with drafts.replaced(FOLDER) as draft:
        draft.mkdir()
        for lesson in chosen:
            write(lesson, draft / lesson.name, assignments)
