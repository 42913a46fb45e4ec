"""The form in which a lesson is saved: its set-up, its metadata, its counts."""

import hashlib

import nbformat
from nbformat import NotebookNode

from helpers.tooling.lesson import files

SETUP = """\
import os
import sys
from pathlib import Path

# VS Code and Jupyter say where this notebook is. Without them, it is in the working folder.
told = globals().get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME") or "here"
folders = [*Path(told).resolve().parents, *Path("here").resolve().parents]
root = next((p for p in folders if (p / "helpers" / "compare.py").is_file()), None)
if root is None:
    looked = f"no folder `helpers` of this collection in {folders[0]} or above"
    raise FileNotFoundError(f"{looked}: download the whole collection")
sys.path.insert(0, str(root))
"""
"""How the first cell that imports helpers begins."""
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""All metadata that a saved lesson has."""
CELL_METADATA = ("tags", "jupyter", "cellView", "alt")
"""Metadata of a cell that `make outputs` leaves alone; `alt` says what its figure shows."""


def keeps_output(cell: NotebookNode) -> bool:
    """Return whether a code cell's saved output stays: not compared, and of its present source."""
    return not files.is_compared(cell) and cell.metadata.get("output_of") == _hash(cell.source)


def describe_figures(notebook: NotebookNode) -> None:
    """Write a cell's alternative text beside its figures, where nbconvert and Jupyter look."""
    for cell in files.code_cells(notebook):
        for output in cell.outputs:
            if "alt" in cell.metadata and "image/png" in output.get("data", {}):
                output.metadata.setdefault("image/png", {})["alt"] = cell.metadata.alt


def normalize(notebook: NotebookNode) -> None:
    """Leave in an executed notebook only what is the same whenever and wherever it ran."""
    notebook.metadata = nbformat.from_dict(METADATA)
    describe_figures(notebook)
    for cell in notebook.cells:
        metadata = {}
        for name in CELL_METADATA:
            if name in cell.metadata:
                metadata[name] = cell.metadata[name]
        if "solution" in files.tags(cell):
            metadata["jupyter"] = {"source_hidden": True}
        cell.metadata = nbformat.from_dict(metadata)
    # Kernels count what they run, hidden requests too; here each cell counts once.
    for count, cell in enumerate(files.code_cells(notebook), start=1):
        cell.execution_count = count
        if not files.is_compared(cell):
            cell.metadata["output_of"] = _hash(cell.source)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
