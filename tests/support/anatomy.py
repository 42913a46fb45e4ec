"""The anatomy of a lesson, checked on the file: what papermill, nbval and the copies rely on."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from helpers.tooling.lesson import copies, files, form

TAGS = {"parameters", "solution", "needs-opacus", "nbval-ignore-output", "nbval-check-output"}
TAGS |= {"hide-cell", "hide-input", "hide-output"}
LEVELS = ("warm-up", "standard", "challenge", "real problem")
"""How hard an exercise is, as its task says."""
REQUIRED = ("device", "dataset", "batch_size", "seed")
PARAMETER = r"(\w+): (int = \d+|str = \"[^\"=#]*\")  # [^=#]+"
"""A line of the parameters cell: what papermill can read, and a reader too."""
VARYING = {
    "a device": r"\b(?:cpu|cuda|mps)(?::\d+)?\b",
    "an address": r"\b0x[0-9a-f]{6,}\b",
    "a path": r"(?:(?<![\w.:/<])/(?:\w[\w.-]*/)+|\b[A-Z]:\\)\w[\w.-]*",
    "a process or a temporary file": r"\b(?:ipykernel_|tmp)\d+\b",
    "a time": r"\b\d+(?:\.\d+)?\s?(?:ns|us|µs|μs|ms|s|sec|secs|seconds?|min|minutes?)\b",
    "a progress bar": r"\d+%\|",
}
"""What differs from one machine or run to the next."""

Finding = tuple[NotebookNode | None, str]
"""The cell that is concerned, if it is one, and what is wrong with it."""


def findings(lesson: Path) -> list[str]:
    """Say what is wrong with a lesson as it lies there: sentences that name the file and cell."""
    notebook = files.read(lesson)
    found = []
    for check in (_form, _parameters, _cells, _exercises):
        for cell, wrong in check(notebook):
            place = f", {files.place(notebook, cell)}" if cell else ""
            found.append(f"{lesson.name}{place}: {wrong}")
    return found


def _stands_alone(notebook: NotebookNode) -> bool:
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
    if second.source != form.SETUP and not _stands_alone(notebook):
        yield second, "the second code cell is not the set-up cell that lessons share"


def _cells(notebook: NotebookNode) -> Iterator[Finding]:
    for cell in notebook.cells:
        for tag in {*files.tags(cell)} - TAGS:
            yield cell, f"there is no tag {tag!r}"
    for cell in files.code_cells(notebook):
        shown = [kind for output in cell.outputs for kind in output.get("data", {})]
        if bool({"image/png", "image/svg+xml"} & {*shown}) != bool(cell.metadata.get("alt")):
            yield cell, "a figure has an alternative text, in cell metadata `alt`, and only that"
        if any(output.output_type == "error" for output in cell.outputs):
            yield cell, "its saved output is an error"
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
    """Look for what the editions for students make of a solution and of its check."""
    if _stands_alone(notebook):
        return
    if not any(copies.EXERCISES in cell.source for cell in notebook.cells):
        yield None, "it does not explain exercises as every lesson does"
    solutions = [n for n, cell in enumerate(notebook.cells) if "solution" in files.tags(cell)]
    for number, place in enumerate(solutions, 1):
        cell, check = notebook.cells[place : place + 2]
        try:
            copies.stub(cell.source)
        except (ValueError, SyntaxError) as error:
            yield cell, f"no stub can be made of it: {error}"
        checked = "with exercises.check(" in check.source
        if not checked or "nbval-check-output" not in files.tags(check):
            yield cell, "no check tagged 'nbval-check-output' follows it"
        tasks = [each for each in notebook.cells[:place] if "**Exercise" in each.source]
        begins = rf"(?m)^\*\*Exercise {number}\*\* \(({'|'.join(LEVELS)}), [1-9]\d* minutes\)\. \S"
        if not tasks or not re.search(begins, tasks[-1].source):
            yield cell, f"no task before it: **Exercise {number}** (level, N minutes)"
