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
        tags = set(files.tags(cell))
        fold_name = "Code"
        if "solution" in tags:
            fold_name = "Solution"
            tags.add("hide-input")
        elif cell.source.startswith(form.SETUP):
            fold_name = "Set-up"
            tags.add("hide-input")
        if "answer" in cell.metadata:
            # MyST-NB gives both folds of a cell one name.
            folds_code = "hide-input" in tags
            fold_name = "Show code, or what happens" if folds_code else "Show what happens"
            tags.add("hide-output")
            if cell.metadata.answer:
                data = {"text/markdown": cell.metadata.answer}
                cell.outputs.append(new_output("display_data", data))
        cell.metadata["tags"] = sorted(tags)
        cell.metadata["mystnb"] = {
            "code_prompt_show": fold_name,
            "code_prompt_hide": fold_name,
            "image": {"alt": cell.metadata.get("alt", "A figure.")},
        }
    return notebook
