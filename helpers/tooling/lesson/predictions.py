"""Answers that wait behind their predictions."""

import re
from itertools import takewhile

from nbformat import NotebookNode

PREDICT = "**Predict**"


def fold(notebook: NotebookNode) -> None:
    """Mark what answers a prediction, so that the page folds it.

    A prediction is a markdown cell with `PREDICT` directly before code. Each output of that code,
    up to the next markdown cell, gets the metadata `answer`, a text: empty, or for the last of
    them what that markdown cell says of it. A heading, a paragraph that begins in bold as this
    lesson's small headings do, and the next prediction stay in their cell, and can be seen.
    """
    cells = notebook.cells
    for place in reversed(range(len(cells))):
        if cells[place].cell_type != "markdown" or PREDICT not in cells[place].source:
            continue
        code = list(takewhile(lambda cell: cell.cell_type == "code", cells[place + 1 :]))
        for cell in code:
            if cell.outputs:
                cell.metadata.answer = ""
        after = place + 1 + len(code)
        if code and code[-1].outputs and after < len(cells):
            said = cells[after]
            end = _end(said.source)
            code[-1].metadata.answer, said.source = said.source[:end], said.source[end:]
            if not said.source:
                del cells[after]


def _end(text: str) -> int:
    """Return where a text that begins with an answer goes on to something else."""
    bare = re.sub(r"```.*?```", lambda code: "x" * len(code[0]), text, flags=re.DOTALL)
    place = 0
    for paragraph in bare.split("\n\n"):
        if paragraph.startswith(("#", "**")):
            return place
        if PREDICT in paragraph:
            # An answer that shares its paragraph with the next prediction ends at that word.
            return place or paragraph.index(PREDICT)
        place += len(paragraph) + 2
    return len(text)
