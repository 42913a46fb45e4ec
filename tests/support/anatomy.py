"""The anatomy of a lesson, checked on the file: its cells, tags, metadata, parameters, set-up."""

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from helpers.tooling.lesson import copies, files, form, parameters
from tests.support import saved

TAGS = ("parameters", "solution", "nbval-ignore-output", "nbval-check-output")
LARGEST = 1_500_000
"""Bytes that a lesson may have, so that it opens in seconds."""
LEVELS = ("warm-up", "standard", "challenge", "real problem")
"""How hard an exercise is, as its task says."""
FEWEST_EXERCISES = 4
PARAMETER = r"\w+: (int = \d+|str = \"[^\"=#]*\")  # [^=#]+"
"""A line of the parameters cell: what papermill can read, and a reader too."""
HINT = r"<details><summary>Hint {}</summary>\n\n(?:(?!<details>).)+?\n\n</details>"
HINTS = HINT.format(1) + r"\n\n" + HINT.format(2)

Finding = tuple[NotebookNode | None, str]
"""The cell that is concerned, if it is one, and what is wrong with it."""


def findings(lesson: Path) -> list[str]:
    """Check a lesson as it lies there, without running it.

    Returns:
        What is wrong with it: sentences that name the file and the cell. Empty for a good lesson.
    """
    try:
        notebook = files.read(lesson)
    except ValueError as error:
        return [str(error)]
    checks = (_metadata, _title, _parameters, _setup, _cells, _exercises, _tasks, saved.findings)
    found = [
        f"{lesson.name}, {files.place(notebook, cell)}: {wrong}"
        if cell
        else f"{lesson.name}: {wrong}"
        for check in checks
        for cell, wrong in check(notebook)
    ]
    size = lesson.stat().st_size
    if size > LARGEST:
        found.append(f"{lesson.name}: it has {size:,} bytes, more than {LARGEST:,}")
    return found


def _metadata(notebook: NotebookNode) -> Iterator[Finding]:
    if notebook.metadata != form.METADATA:
        yield None, f"its metadata is not {form.METADATA}: `make outputs` makes it so"


def _title(notebook: NotebookNode) -> Iterator[Finding]:
    first = notebook.cells[0] if notebook.cells else None
    if first is None or first.cell_type != "markdown" or not first.source.startswith("# "):
        yield first, "a lesson begins with its title, a markdown cell that starts with `# `"


def _parameters(notebook: NotebookNode) -> Iterator[Finding]:
    tagged = [cell for cell in notebook.cells if "parameters" in files.tags(cell)]
    if tagged != files.code_cells(notebook)[:1] or len(tagged) != 1:
        yield None, "the first code cell, and no other, is tagged 'parameters'"
    for cell in tagged[:1]:
        names = [line.partition(":")[0] for line in cell.source.splitlines()]
        if missing := [name for name in parameters.REQUIRED if name not in names]:
            yield cell, f"the parameters cell lacks {', '.join(missing)}"
        for line in cell.source.splitlines():
            if not re.fullmatch(PARAMETER, line):
                yield cell, f"line {line!r} has not the form `name: type = value  # meaning`"


def _setup(notebook: NotebookNode) -> Iterator[Finding]:
    second = files.code_cells(notebook)[1:2]
    if [cell.source for cell in second] != [form.SETUP]:
        yield (*second, None)[0], "the second code cell is not the set-up cell that lessons share"


def _cells(notebook: NotebookNode) -> Iterator[Finding]:
    for cell in notebook.cells:
        if re.fullmatch("[0-9a-f]{8}|[0-9a-f-]{36}", cell.id):
            yield cell, "its id is missing, a duplicate or random: give it a readable one"
        for name in cell.metadata.keys() - set(form.CELL_METADATA):
            yield cell, f"its metadata {name!r} does not belong there: `make outputs` removes it"
        for tag in files.tags(cell):
            if tag not in TAGS:
                near = difflib.get_close_matches(tag, TAGS, n=1, cutoff=0)[0]
                yield cell, f"there is no tag {tag!r}: perhaps {near!r}"
        if cell.cell_type == "code":
            if not cell.source.strip():
                yield cell, "it is empty"
            if cell.source.rstrip().endswith(";"):
                yield cell, "it ends in `;`, which hides an output here and not in nbval"
            if "clear_output" in cell.source:
                yield cell, "`clear_output` makes outputs that cannot be compared"


def _exercises(notebook: NotebookNode) -> Iterator[Finding]:
    solutions = [n for n, cell in enumerate(notebook.cells) if "solution" in files.tags(cell)]
    if solutions and not any(copies.EXERCISES in cell.source for cell in notebook.cells):
        yield None, "it has solutions and does not explain exercises as every lesson does"
    for number in solutions:
        cell, following = notebook.cells[number], notebook.cells[number + 1 : number + 2]
        try:
            copies.stub(cell.source)
        except (ValueError, SyntaxError) as error:
            yield cell, f"no stub can be made of it: {error}"
        if not following or "with exercises.check(" not in following[0].source:
            yield cell, "no check follows it: a cell with `with exercises.check(...)`"
        elif "nbval-check-output" not in files.tags(following[0]):
            yield following[0], "its verdict is the same everywhere: tag it 'nbval-check-output'"


def _tasks(notebook: NotebookNode) -> Iterator[Finding]:
    """Demand of the tasks what a reader chooses by: a level, minutes, two hints; and enough."""
    levels, task = [], None
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and "**Exercise" in cell.source:
            task = cell
        if "solution" not in files.tags(cell):
            continue
        name = f"Exercise {len(levels) + 1}"
        begins = rf"^\*\*{name}\*\* \(({'|'.join(LEVELS)}), [1-9]\d* minutes\)\. \S"
        level = re.search(begins, task.source if task else "", re.MULTILINE)
        levels.append(level and level[1])
        if task is None:
            yield cell, "no task stands before it: a markdown cell with `**Exercise`"
        elif level is None:
            told = ", ".join(LEVELS)
            yield task, f"its task does not begin `**{name}** (level, N minutes). `, of {told}"
        elif not re.fullmatch(HINTS, task.source[task.source.find("<details>") :], re.DOTALL):
            yield task, f"{name} has not two hints at its end: `<details><summary>Hint 1</summary>`"
        task = None
    if levels and len(levels) < FEWEST_EXERCISES:
        yield None, f"it has {len(levels)} exercises: {FEWEST_EXERCISES} are the fewest"
    if levels and levels[0] not in (None, LEVELS[0]):
        yield None, f"its first exercise is not a {LEVELS[0]}"
    if levels and levels[-1] not in (None, LEVELS[-1]):
        yield None, f"its last exercise is not a {LEVELS[-1]}"
