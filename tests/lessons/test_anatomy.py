"""The anatomy of a lesson, on its file: what papermill, nbval and the copies rely on."""

import copy
import re

import pytest
from docutils.utils.math import MathError
from nbformat import NotebookNode

from helpers.tooling.lesson import copies, files, form
from helpers.tooling.pages import formulas
from tests.support.samples import DOOR, LESSONS

TAGS = {
    "parameters",
    "solution",
    "needs-opacus",
    "nbval-ignore-output",
    "nbval-check-output",
    "hide-cell",
    "hide-input",
    "hide-output",
    "subject",  # a longer cell that is the subject of its page
}
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


@pytest.fixture(scope="module", params=[DOOR, *LESSONS], ids=lambda path: path.stem)
def notebook(request) -> NotebookNode:
    return files.read(request.param)


def test_it_is_what_make_outputs_saves(notebook):
    saved = copy.deepcopy(notebook)
    form.normalize(saved)
    assert notebook.nbformat_minor == 5
    assert notebook.metadata == saved.metadata
    for cell, normal in zip(notebook.cells, saved.cells, strict=True):
        assert cell == normal, f"{cell.id}: an old count, metadata or timing: `make outputs`"
        for tag in files.tags(cell):
            assert tag in TAGS, f"{cell.id}: no tool knows the tag {tag}"


def test_the_first_code_cell_has_the_parameters(notebook):
    tagged = [cell for cell in notebook.cells if "parameters" in files.tags(cell)]
    first = files.code_cells(notebook)[0]
    assert tagged == [first]
    names = set()
    for line in first.source.splitlines():
        parameter = re.fullmatch(PARAMETER, line)
        assert parameter, f"not of the form `name: type = value  # meaning`: {line}"
        names.add(parameter[1])
    assert names >= {"device", "dataset", "batch_size", "seed"}


def test_the_set_up_finds_the_helpers(notebook):
    for cell in files.code_cells(notebook):
        if "helpers import" in cell.source:
            assert cell.source.startswith(form.SETUP), cell.id
            return
    # Lesson 0 imports none.


def test_formulas_can_be_drawn(notebook):
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        text = re.sub(r"```.*?```|`[^`]*`", "", cell.source, flags=re.DOTALL)  # without code
        text = text.replace("$$", "$")
        for formula in re.findall(r"(?<!\\)\$([^$]+)\$", text):
            try:
                formulas.mathml(formula, block=True)
            except MathError as error:
                pytest.fail(f"{cell.id}: {formula} cannot be drawn: {error}")


def test_figures_have_a_text_for_those_who_cannot_see_them(notebook):
    for cell in files.code_cells(notebook):
        text = cell.metadata.get("alt")
        has_figure = False
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                assert output.metadata.get("image/png", {}).get("alt") == text, cell.id
            if "image/png" in data or "image/svg+xml" in data:
                has_figure = True
        assert has_figure == bool(text), f"{cell.id}: `alt`, for a figure and only that"


def test_saved_outputs_are_no_errors_and_those_compared_are_the_same_everywhere(notebook):
    for cell in files.code_cells(notebook):
        texts = []
        for output in cell.outputs:
            assert output.output_type != "error", cell.id
            texts.append(output.get("text", ""))
            for kind, content in output.get("data", {}).items():
                if "text" in kind:
                    texts.append(content)
            if files.is_compared(cell):
                assert output.get("name") != "stderr", f"{cell.id}: warnings change, so catch them"
        if files.is_compared(cell):
            for what, pattern in VARYING.items():
                found = re.search(pattern, "\n\n".join(texts))
                assert not found, f"{cell.id} is compared, and holds {what}: {found[0]}"


def test_an_exercise_is_a_task_a_solution_and_its_check(notebook):
    text = "\n".join(cell.source for cell in notebook.cells)
    pairs = copies.exercises(notebook)
    numbers = re.findall(r"(?m)^\*\*Exercise (\d+)\*\* \(", text)
    assert numbers == [str(number) for number in range(1, len(pairs) + 1)]
    # Copies for students say something else in its place.
    assert (copies.EXERCISES in text) == bool(pairs)
    for solution, check in pairs:
        copies.stub(solution.source)  # raises where students could be given none
        assert "with exercises.check(" in check.source, f"{check.id}: it checks nothing"
        assert "nbval-check-output" in files.tags(check), f"{check.id}: it is compared everywhere"
