"""Small lessons made for tests, the real ones, and pytest as the collection configures it."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers.tooling.lesson import files, form

ROOT = Path(__file__).parents[2]
DOOR, *LESSONS = files.find(ROOT / files.FOLDER)
PARAMETERS = """\
device: str = "auto"  # auto, cpu, cuda, cuda:1 or mps
dataset: str = "digits"  # digits or random
batch_size: int = 64  # B, the number of samples
hidden: int = 20  # units of the hidden layer
seed: int = 0  # of every random stream"""
ANSWER = '''\
def answer(x):
    """Return x, (B,), doubled."""
    return 2 * x'''
CHECK = """\
from helpers import exercises

with exercises.check("Exercise 1", answer) as doubled:
    exercises.expect("doubled", doubled(torch.ones(3)), 2 * torch.ones(3))"""


def code(identity: str, source: str, *tags: str, printed: str = "") -> NotebookNode:
    cell = new_code_cell(source, id=identity)
    if tags:
        cell.metadata["tags"] = list(tags)
    if printed:
        cell.outputs = [new_output("stream", name="stdout", text=printed)]
    return cell


def lesson(*cells: NotebookNode) -> NotebookNode:
    """Make a lesson of a title, the parameters cell and these cells, as if they had been run."""
    first = [new_markdown_cell("# A lesson", id="title"), code("sizes", PARAMETERS, "parameters")]
    notebook = new_notebook(cells=[*first, *cells])
    form.normalize(notebook)
    return notebook


def good_lesson() -> NotebookNode:
    cells = [code("set-up", form.SETUP)]
    printed = "Exercise 1: correct\n"
    for number in (1, 2):
        cells += [
            new_markdown_cell("Double the numbers.", id=f"exercise-{number}"),
            code(f"answer-{number}", ANSWER, "solution"),
            code(f"check-{number}", CHECK, "nbval-check-output", printed=printed),
        ]
    return lesson(*cells)


def save(notebook: NotebookNode, stem: str) -> Path:
    path = files.FOLDER / f"{stem}.ipynb"
    nbformat.write(notebook, path)
    return path


def cell(notebook: NotebookNode, identity: str) -> NotebookNode:
    for each in notebook.cells:
        if each.id == identity:
            return each
    raise LookupError(identity)


def run_pytest(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run pytest with the collection's configuration in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / ".pytest.ini")]
    command += ["--rootdir", str(folder), "-p", "no:cacheprovider", "--color=no", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        timeout=900,
        capture_output=True,
        encoding="utf-8",
    )
