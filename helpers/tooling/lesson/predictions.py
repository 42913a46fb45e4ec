"""Folding the answers to predictions."""

import re

from nbformat import NotebookNode

from helpers.tooling.lesson import files

PREDICT = "**Predict**"


def fold(notebook: NotebookNode) -> None:
    """Mark what answers a prediction, so that a page folds it.

    What answers a prediction is the output of code between a markdown cell with `PREDICT` and the
    next markdown cell, and any output of a cell tagged `hide-output`. Such a code cell gets the
    metadata `answer`, a text: what the markdown cell right after it says about its output, or `""`.
    A heading, a paragraph that begins in bold as this lesson's small headings do, and the next
    prediction stay in their cell, and can be seen.
    """
    predicted, answered = False, None
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            if answered:
                end = _end(cell.source)
                answered.metadata.answer, cell.source = cell.source[:end], cell.source[end:]
            predicted, answered = PREDICT in cell.source, None
        else:
            hidden = cell.outputs and (predicted or "hide-output" in files.tags(cell))
            answered = cell if hidden else None
            if answered:
                cell.metadata.answer = ""
    notebook.cells = [cell for cell in notebook.cells if cell.source or cell.cell_type == "code"]


def _end(text: str) -> int:
    """Return where a text that begins with an answer goes on to something else."""
    bare = re.sub(r"```.*?```", lambda code: "x" * len(code[0]), text, flags=re.DOTALL)
    position = 0
    for paragraph in bare.split("\n\n"):
        if paragraph.startswith(("#", "**")):
            return position
        if PREDICT in paragraph:
            # An answer that shares its paragraph with the next prediction ends at that word.
            return position or paragraph.index(PREDICT)
        position += len(paragraph) + 2
    return len(text)
