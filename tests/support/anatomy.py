"""The anatomy of a lesson, checked on the file: what papermill, nbval and the copies rely on."""

import copy
import re
from pathlib import Path

from docutils.utils.math import MathError
from nbformat import NotebookNode

from helpers.tooling.lesson import copies, files, form, formulas

TAGS = {"parameters", "solution", "needs-opacus", "nbval-ignore-output", "nbval-check-output"}
TAGS |= {"hide-cell", "hide-input", "hide-output"}
LEVELS = "warm-up|standard|challenge|real problem"
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


def check(lesson: Path) -> None:
    """Raise AssertionError with what is wrong with a lesson as it lies there, and in which cell."""
    notebook = files.read(lesson)
    saved, cells = copy.deepcopy(notebook), files.code_cells(notebook)
    form.normalize(saved)  # what `make outputs` would change, without running the lesson
    assert notebook.nbformat_minor == 5
    assert notebook.metadata == saved.metadata, "its metadata is not what `make outputs` saves"
    for there, cell in zip(notebook.cells, saved.cells, strict=True):
        assert there == cell, f"{cell.id}: an old count, metadata or timing: `make outputs`"
        assert {*files.tags(cell)} <= TAGS, f"{cell.id}: there is no such tag"
    for cell in notebook.cells:
        _formulas(cell)
    for cell in cells:
        _outputs(cell)
    tagged = [cell.id for cell in notebook.cells if "parameters" in files.tags(cell)]
    assert tagged == [cells[0].id], "the first code cell, and no other, is tagged 'parameters'"
    lines = {line: re.fullmatch(PARAMETER, line) for line in cells[0].source.splitlines()}
    assert all(lines.values()), f"not of the form `name: type = value  # meaning`: {lines}"
    assert {match[1] for match in lines.values()} >= {"device", "dataset", "batch_size", "seed"}
    # A lesson without helpers, as lesson 0, has no set-up, nor exercises.
    helped = [cell for cell in cells if "helpers import" in cell.source]
    if helped:
        assert helped[0].source.startswith(form.SETUP), f"{helped[0].id} does not find the helpers"
        _exercises(notebook)


def _formulas(cell: NotebookNode) -> None:
    """Draw the formulas of a text, as the book does."""
    if cell.cell_type == "markdown":
        bare = re.sub(r"```.*?```|`[^`]*`", "", cell.source, flags=re.DOTALL)
        for formula in re.findall(r"(?<!\\)\$([^$]+)\$", bare.replace("$$", "$")):
            try:
                formulas.mathml(formula, block=True)
            except MathError as error:
                raise AssertionError(f"{cell.id}: {formula} cannot be drawn: {error}") from error


def _outputs(cell: NotebookNode) -> None:
    """Look into the saved outputs of a cell, and closer if nbval compares them."""
    shown = [kind for output in cell.outputs for kind in output.get("data", {})]
    figure = bool({"image/png", "image/svg+xml"} & {*shown})
    assert figure == bool(cell.metadata.get("alt")), f"{cell.id}: `alt`, for a figure and only that"
    for output in cell.outputs:
        assert output.output_type != "error", f"{cell.id}: its saved output is an error"
        if files.is_compared(cell):
            assert output.get("name") != "stderr", f"{cell.id}: warnings change, so catch them"
            texts = [text for kind, text in output.get("data", {}).items() if "text" in kind]
            for text in (output.get("text", ""), *texts):
                for what, pattern in VARYING.items():
                    assert not re.search(pattern, text), f"{cell.id} is compared, and holds {what}"


def _exercises(notebook: NotebookNode) -> None:
    """Look for what the editions for students make of a solution and of its check."""
    text = "\n".join(cell.source for cell in notebook.cells)
    assert copies.EXERCISES in text, "it does not explain exercises as every lesson does"
    pairs = copies.exercises(notebook)
    for solution, check in pairs:
        copies.stub(solution.source)
        assert "with exercises.check(" in check.source, f"{check.id}: it checks nothing"
        assert "nbval-check-output" in files.tags(check), f"{check.id} is compared everywhere"
    begins = rf"(?m)^\*\*Exercise (\d+)\*\* \((?:{LEVELS}), [1-9]\d* minutes\)\. \S"
    assert re.findall(begins, text) == [str(number) for number in range(1, len(pairs) + 1)]
