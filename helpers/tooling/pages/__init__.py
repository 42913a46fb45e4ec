"""The reading edition: how lessons become a book of pages."""

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_output

from helpers.tooling.lesson import files, form, predictions


def read(text: str) -> NotebookNode:
    """Read a lesson for MyST-NB: with answers in their folds, names of folds, and texts of figures.

    MyST-NB itself folds what is tagged `hide-input` or `hide-output`. Solutions and the set-up are
    folded without a tag, too, and so is the output that answers a prediction.
    """
    notebook = nbformat.reads(text, nbformat.NO_CONVERT)
    predictions.fold(notebook)
    for cell in files.code_cells(notebook):
        tags, name = {*files.tags(cell)}, "Code"
        if "solution" in tags or cell.source.startswith(form.SETUP):
            name = "Solution" if "solution" in tags else "Set-up"
            tags.add("hide-input")
        if "answer" in cell.metadata:
            name = "Show what happens"
            tags.add("hide-output")
            if answer := cell.metadata.answer:
                cell.outputs.append(new_output("display_data", {"text/markdown": answer}))
        shown = {"code_prompt_show": name, "code_prompt_hide": name}
        shown["image"] = {"alt": cell.metadata.get("alt", "A figure.")}
        cell.metadata |= {"mystnb": shown, "tags": sorted(tags)}
    return notebook
