"""The saved outputs of a lesson, checked on the file: complete, in order, the same everywhere."""

import re
from collections.abc import Iterator

from nbformat import NotebookNode

from helpers.tooling.lesson import files, form

VARYING = {
    "a device": r"\b(?:cpu|cuda|mps)(?::\d+)?\b",
    "an address": r"\b0x[0-9a-f]{6,}\b",
    "a path": r"(?:(?<![\w.:/<])/(?:\w[\w.-]*/)+|\b[A-Z]:\\)\w[\w.-]*",
    "a process or a temporary file": r"\b(?:ipykernel_|tmp)\d+\b",
    "a time": r"\b\d+(?:\.\d+)?\s?(?:ns|us|µs|μs|ms|s|sec|secs|seconds?|min|minutes?)\b",
    "a progress bar": r"\d+%\|",
}
"""What differs from one machine or run to the next."""


def findings(notebook: NotebookNode) -> Iterator[tuple[NotebookNode | None, str]]:
    """Check the saved outputs of a lesson.

    Yields:
        The cell that is concerned, or None for the whole lesson; and what is wrong.
    """
    code = files.code_cells(notebook)
    counts = [cell.execution_count for cell in code]
    if not any(counts):
        yield None, "it was never executed: `make outputs` does it"
    elif counts != list(range(1, len(code) + 1)):
        odd = next(cell for n, cell in enumerate(code, 1) if cell.execution_count != n)
        count = odd.execution_count
        how = f"was executed as number {count}, out of order" if count else "was never executed"
        yield odd, f"it {how}: `make outputs` executes all in order"
    for cell in code:
        for output in cell.outputs:
            if output.output_type == "error":
                yield cell, f"it ended in {output.ename}: show errors with `errors.expected`"
        yield from _described(cell)
        if files.is_compared(cell):
            yield from _compared(cell)
        elif cell.metadata.get("output_of") != form.source_mark(cell):
            yield cell, "its output is of an earlier version of the cell: `make outputs` renews it"
    if not _shows_gradient_shape(notebook):
        yield None, "no compared output shows the shape of a gradient, such as (64, 32, 1, 3, 3)"


def _described(cell: NotebookNode) -> Iterator[tuple[NotebookNode, str]]:
    alt = cell.metadata.get("alt")
    if form.has_figure(cell) and not (isinstance(alt, str) and alt.strip()):
        yield cell, "its figure has no alternative text: say what it shows in cell metadata `alt`"
    elif alt is not None and not form.has_figure(cell):
        yield cell, "it has an alternative text and no figure: remove `alt` from its metadata"


def _compared(cell: NotebookNode) -> Iterator[tuple[NotebookNode, str]]:
    if any(output.get("name") == "stderr" for output in cell.outputs):
        yield cell, "its output holds stderr, where warnings and progress bars change: catch them"
    for text in _texts(cell):
        for what, pattern in VARYING.items():
            match = re.search(pattern, text)
            if match:
                yield cell, f"its output is compared, and holds {what}: {match.group()!r}"


def _texts(cell: NotebookNode) -> Iterator[str]:
    """List the texts among a cell's outputs, which nbval compares."""
    for output in cell.outputs:
        if output.output_type == "stream":
            yield output.text
        for kind, content in output.get("data", {}).items():
            if kind.startswith("text/") or kind == "image/svg+xml":
                yield content


def _shows_gradient_shape(notebook: NotebookNode) -> bool:
    """Look for a tuple of three or more sizes, the first one a parameter's default."""
    sizes = set()
    for cell in notebook.cells:
        if "parameters" in files.tags(cell):
            sizes.update(re.findall(r"(?m)^\w+: int = (\d+)", cell.source))
    shapes = (
        match.group(1)
        for cell in files.code_cells(notebook)
        if files.is_compared(cell)
        for text in _texts(cell)
        for match in re.finditer(r"\((\d+)(?:, \d+){2,}\)", text)
    )
    return any(first in sizes for first in shapes)
