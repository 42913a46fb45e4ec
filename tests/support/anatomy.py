"""The anatomy of a lesson, checked on the file: its cells, tags, exercises and saved outputs."""

import copy
import re
import symtable
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from helpers.tooling.lesson import copies, files, form

TAGS = {"parameters", "solution", "needs-opacus", "nbval-ignore-output", "nbval-check-output"}
LARGEST = 1_500_000
"""Bytes that a lesson may have, so that it opens in seconds."""
LEVELS = ("warm-up", "standard", "challenge", "real problem")
"""How hard an exercise is, as its task says: the first is a warm-up, the last a real problem."""
REQUIRED = ("device", "dataset", "batch_size", "seed")
PARAMETER = r"(\w+): (int = \d+|str = \"[^\"=#]*\")  # [^=#]+"
"""A line of the parameters cell: what papermill can read, and a reader too."""
HINT = r"<details><summary>Hint {}</summary>\n\n(?:(?!<details>).)+?\n\n</details>"
HINTS = HINT.format(1) + r"\n\n" + HINT.format(2)
VARYING = {
    "a device": r"\b(?:cpu|cuda|mps)(?::\d+)?\b",
    "an address": r"\b0x[0-9a-f]{6,}\b",
    "a path": r"(?:(?<![\w.:/<])/(?:\w[\w.-]*/)+|\b[A-Z]:\\)\w[\w.-]*",
    "a process or a temporary file": r"\b(?:ipykernel_|tmp)\d+\b",
    "a time": r"\b\d+(?:\.\d+)?\s?(?:ns|us|µs|μs|ms|s|sec|secs|seconds?|min|minutes?)\b",
    "a progress bar": r"\d+%\|",
}
"""What differs from one machine or run to the next."""
WIDEST = 562
"""CSS pixels of a figure, since a phone with 358 of them then shows 9 points as 8 pixels."""
LOOK = "look at it, mend its alternative text, then `make outputs LOOKED=1` with this LESSON"

Finding = tuple[NotebookNode | None, str]
"""The cell that is concerned, if it is one, and what is wrong with it."""


def findings(lesson: Path) -> list[str]:
    """Say what is wrong with a lesson as it lies there: sentences that name the file and cell."""
    notebook = files.read(lesson)
    found = []
    for check in (_form, _parameters, _cells, _exercises, _checks):
        for cell, wrong in check(notebook):
            place = f", {files.place(notebook, cell)}" if cell else ""
            found.append(f"{lesson.name}{place}: {wrong}")
    if lesson.stat().st_size > LARGEST:
        found.append(f"{lesson.name}: it has more than {LARGEST:,} bytes")
    return found


def stands_alone(notebook: NotebookNode) -> bool:
    """Say whether a lesson uses no helpers, as lesson 0: then it has no set-up, nor exercises."""
    return not any("helpers import" in cell.source for cell in files.code_cells(notebook))


def _form(notebook: NotebookNode) -> Iterator[Finding]:
    """Look for what `make outputs` would change, without running the lesson."""
    saved = copy.deepcopy(notebook)
    form.normalise(saved)
    if notebook.metadata != saved.metadata or notebook.nbformat_minor != 5:
        yield None, "its metadata or format is not what `make outputs` saves"
    for cell, there in zip(saved.cells, notebook.cells, strict=True):
        if there != cell:
            yield there, "its count, metadata or timing is an old one: `make outputs` renews it"


def _parameters(notebook: NotebookNode) -> Iterator[Finding]:
    first, second = files.code_cells(notebook)[:2]
    if [cell for cell in notebook.cells if "parameters" in files.tags(cell)] != [first]:
        yield first, "the first code cell, and no other, is tagged 'parameters'"
    lines = [(line, re.fullmatch(PARAMETER, line)) for line in first.source.splitlines()]
    for line, match in lines:
        if not match:
            yield first, f"line {line!r} has not the form `name: type = value  # meaning`"
    if missing := {*REQUIRED} - {match[1] for _, match in lines if match}:
        yield first, f"the parameters cell lacks {', '.join(sorted(missing))}"
    if second.source != form.SETUP and not stands_alone(notebook):
        yield second, "the second code cell is not the set-up cell that lessons share"


def _cells(notebook: NotebookNode) -> Iterator[Finding]:
    for cell in notebook.cells:
        if re.fullmatch("[0-9a-f]{8}|[0-9a-f-]{36}", cell.id):
            yield cell, "its id is random: give it a readable one"
        if not cell.source.strip():
            yield cell, "it is empty"
        for tag in {*files.tags(cell)} - TAGS:
            yield cell, f"there is no tag {tag!r}"
    for cell in files.code_cells(notebook):
        if any(output.output_type == "error" for output in cell.outputs):
            yield cell, "its saved output is an error"
        shown = form.figure_hash(cell)
        if bool(shown) != bool(cell.metadata.get("alt")):
            yield cell, "a figure has an alternative text, in cell metadata `alt`, and only that"
        elif shown != cell.metadata.get("alt_of"):
            yield cell, f"its figure is another one: {LOOK}"
        sizes = [output.get("metadata", {}).get("image/png", {}) for output in cell.outputs]
        if any(size.get("width", 0) > WIDEST for size in sizes):
            yield cell, f"its figure is wider than {WIDEST} pixels, too wide for a phone"
        if files.is_compared(cell):
            yield from _compared(cell)


def _compared(cell: NotebookNode) -> Iterator[Finding]:
    """Look into the outputs of a cell that nbval compares."""
    for output in cell.outputs:
        if output.get("name") == "stderr":
            yield cell, "its output holds stderr, where warnings change: catch them"
        texts = [content for kind, content in output.get("data", {}).items() if "text" in kind]
        for text in (output.get("text", ""), *texts):
            for what, pattern in VARYING.items():
                if match := re.search(pattern, text):
                    yield cell, f"its output is compared, and holds {what}: {match.group()!r}"


def _exercises(notebook: NotebookNode) -> Iterator[Finding]:
    if stands_alone(notebook):
        return
    solutions = [n for n, cell in enumerate(notebook.cells) if "solution" in files.tags(cell)]
    if not any(copies.EXERCISES in cell.source for cell in notebook.cells):
        yield None, "it does not explain exercises as every lesson does"
    levels = []
    for number, place in enumerate(solutions, 1):
        before = [each for each in notebook.cells[:place] if "**Exercise" in each.source]
        cell, check = notebook.cells[place : place + 2]
        try:
            copies.stub(cell.source)
        except (ValueError, SyntaxError) as error:
            yield cell, f"no stub can be made of it: {error}"
        checked = "with exercises.check(" in check.source
        if not checked or "nbval-check-output" not in files.tags(check):
            yield cell, "no check tagged 'nbval-check-output' follows it"
        begins = rf"\*\*Exercise {number}\*\* \(({'|'.join(LEVELS)}), [1-9]\d* minutes\)\. \S"
        tasks = before[-1].source if before else ""
        task = re.search(rf"(?ms)^{begins}(?:(?!<details>).)*{HINTS}\Z", tasks)
        levels.append(task and task[1])
        if not task:
            yield cell, f"no task before it: **Exercise {number}** (level, N minutes), two hints"
    ends = [levels[0], levels[-1]] if levels else []
    if len(levels) < 4 or (None not in levels and ends != [LEVELS[0], LEVELS[-1]]):
        yield None, "it has not four exercises or more, from warm-up to real problem"


def _checks(notebook: NotebookNode) -> Iterator[Finding]:
    """Look for what a check takes from another check, which a student may have deleted."""
    cells = list(files.code_cells(notebook))
    checks = {cell.id: cell for cell in cells if "exercises.check(" in cell.source}
    names = {cell.id: _names(re.sub(r"(?m)^%.*", "", cell.source)) for cell in cells}
    lesson = set().union(*(made for cell, (made, _) in names.items() if cell not in checks))
    for cell in checks.values():
        made, used = names[cell.id]
        for other in checks.keys() - {cell.id}:
            if shared := (used - made - lesson) & names[other][0]:
                yield cell, f"it takes {', '.join(sorted(shared))} from the cell {other}"


def _names(source: str) -> tuple[set[str], set[str]]:
    """List the names that a cell makes, and all that it uses, of those of the notebook."""
    top = symtable.symtable(source, "<cell>", "exec")
    tables, used = [top], set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        found = (each for each in table.get_symbols() if each.is_referenced())
        used |= {each.get_name() for each in found if table is top or each.is_global()}
    made = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    return made, used
