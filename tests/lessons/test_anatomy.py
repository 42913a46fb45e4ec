"""The anatomy of a lesson, checked on the file: what papermill, nbval and the copies rely on."""

import copy
import re
from pathlib import Path

import pytest
from docutils.utils.math import MathError
from nbformat import NotebookNode

from helpers.tooling.lesson import copies, files, form
from helpers.tooling.pages import formulas
from tests.support.samples import DOOR, LESSONS

TAGS = {"parameters", "solution", "needs-opacus", "nbval-ignore-output", "nbval-check-output"}
TAGS |= {"hide-cell", "hide-input", "hide-output"}
TAGS |= {"subject"}  # a longer cell that is the subject of its page
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


@pytest.mark.parametrize("lesson", [DOOR, *LESSONS], ids=lambda path: path.stem)
def test_lesson_is_sound_as_a_file(lesson: Path) -> None:
    notebook = files.read(lesson)
    _saved(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            _formulas(cell)
    cells = files.code_cells(notebook)
    for cell in cells:
        _outputs(cell)
    tagged = [cell.id for cell in notebook.cells if "parameters" in files.tags(cell)]
    assert tagged == [cells[0].id], "the first code cell, and no other, is tagged 'parameters'"
    _parameters(cells[0])
    # A lesson without helpers, as lesson 0, has no set-up, nor exercises.
    for cell in cells:
        if "helpers import" in cell.source:
            assert cell.source.startswith(form.SETUP), f"{cell.id} does not find the helpers"
            _exercises(notebook)
            break


def _saved(notebook: NotebookNode) -> None:
    """Compare with what `make outputs` would save, without running the lesson."""
    saved = copy.deepcopy(notebook)
    form.normalize(saved)
    assert notebook.nbformat_minor == 5
    assert notebook.metadata == saved.metadata, "its metadata is not what `make outputs` saves"
    for there, cell in zip(notebook.cells, saved.cells, strict=True):
        assert there == cell, f"{cell.id}: an old count, metadata or timing: `make outputs`"
        assert TAGS.issuperset(files.tags(cell)), f"{cell.id}: there is no such tag"


def _parameters(cell: NotebookNode) -> None:
    """Read each line of the parameters cell, and find those that every lesson has."""
    names = set()
    for line in cell.source.splitlines():
        match = re.fullmatch(PARAMETER, line)
        assert match, f"not of the form `name: type = value  # meaning`: {line}"
        names.add(match[1])
    assert names >= {"device", "dataset", "batch_size", "seed"}


def _formulas(cell: NotebookNode) -> None:
    """Draw the formulas of a text, as the book does."""
    without_code = re.sub(r"```.*?```|`[^`]*`", "", cell.source, flags=re.DOTALL)
    for formula in re.findall(r"(?<!\\)\$([^$]+)\$", without_code.replace("$$", "$")):
        try:
            formulas.mathml(formula, block=True)
        except MathError as error:
            raise AssertionError(f"{cell.id}: {formula} cannot be drawn: {error}") from error


def _outputs(cell: NotebookNode) -> None:
    """Look into the saved outputs of a cell, and closer if nbval compares them."""
    has_figure = False
    for output in cell.outputs:
        assert output.output_type != "error", f"{cell.id}: its saved output is an error"
        texts = [output.get("text", "")]
        for kind, content in output.get("data", {}).items():
            if kind in ("image/png", "image/svg+xml"):
                has_figure = True
            if kind == "image/png":
                beside = output.metadata.get(kind, {}).get("alt")
                assert beside == cell.metadata.get("alt"), f"{cell.id}: `alt` beside its figure"
            if "text" in kind:
                texts.append(content)
        if files.is_compared(cell):
            assert output.get("name") != "stderr", f"{cell.id}: warnings change, so catch them"
            for what, pattern in VARYING.items():
                found = re.search(pattern, "\n\n".join(texts))
                assert not found, f"{cell.id} is compared, and holds {what}: {found[0]}"
    has_text = bool(cell.metadata.get("alt"))
    assert has_figure == has_text, f"{cell.id}: `alt`, for a figure and only that"


def _exercises(notebook: NotebookNode) -> None:
    """Look for what the editions for students make of a solution and of its check."""
    text = "\n".join(cell.source for cell in notebook.cells)
    pairs = copies.exercises(notebook)
    if not pairs:  # the exercises of a subject may all be on another page of it
        assert "**Exercise" not in text, "there is no solution"
        return
    assert copies.EXERCISES in text, "it does not explain exercises as every lesson does"
    for solution, check in pairs:
        copies.stub(solution.source)
        assert "with exercises.check(" in check.source, f"{check.id}: it checks nothing"
        assert "nbval-check-output" in files.tags(check), f"{check.id} is compared everywhere"
    begins = rf"(?m)^\*\*Exercise (\d+)\*\* \((?:{LEVELS}), [1-9]\d* minutes\)\. \S"
    assert re.findall(begins, text) == [str(number) for number in range(1, len(pairs) + 1)]
