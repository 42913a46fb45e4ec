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
    predicted = False  # whether the last markdown cell asks for a prediction
    answering = None  # the code cell just before, if its output is an answer
    kept = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            if answering is not None:
                end = _end(cell.source)
                answering.metadata.answer = cell.source[:end]
                cell.source = cell.source[end:]
            predicted = PREDICT in cell.source
            answering = None
            if cell.source:
                kept.append(cell)
        else:
            kept.append(cell)
            answering = None
            if cell.outputs and (predicted or "hide-output" in files.tags(cell)):
                answering = cell
                cell.metadata.answer = ""
    notebook.cells = kept


def _end(text: str) -> int:
    """Return where a text that begins with an answer goes on to something else."""
    # An empty line in a block of code ends no paragraph: it is blotted out, at the same length.
    bare = re.sub(r"```.*?```", lambda code: "x" * len(code[0]), text, flags=re.DOTALL)
    position = 0
    for paragraph in bare.split("\n\n"):
        if paragraph.startswith(("#", "**")):
            return position
        if PREDICT in paragraph:
            # An answer that shares its paragraph with the next prediction ends at that word.
            return position or paragraph.index(PREDICT)
        position += len(paragraph) + len("\n\n")
    return len(text)
