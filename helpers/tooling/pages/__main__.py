"""The reading edition: the lessons as a book of pages, in a folder that needs nothing else.

Run from the folder that holds `notebooks/`, `python -m helpers.tooling.pages` writes build/html/
with Sphinx, MyST-NB and sphinx-book-theme. Each lesson has a button that downloads its copy for
Colab and, if the variable REPO names a repository on GitHub, `owner/name`, one that opens it there.
"""

import base64
import hashlib
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from sphinx.cmd.build import build_main

from helpers.tooling import colab
from helpers.tooling.lesson import drafts, endings, files

FOLDER = Path("build/html")
HERE = Path(__file__).parent
PICTURE = Path(".github/picture.png")
FIRST_CELL = r"# (.+)\n\n(.+)\n(?:.*\n)*\*Reading: (.+?)\. Running: (.+)\.\*"
"""How a lesson begins: its title, its promise, and, in the last line, how long it takes."""


def build(folder: Path = FOLDER) -> None:
    """Write all pages; the folder is there in full or, after a warning of Sphinx, as before."""
    lessons = files.find()
    repo = os.environ.get("REPO")
    with (
        drafts.alone(folder),
        drafts.replaced(folder) as draft,
        tempfile.TemporaryDirectory() as temp_dir,
    ):
        source = Path(temp_dir, "source")
        source.mkdir()
        for path in (*lessons, *PICTURE.parent.glob(PICTURE.name)):
            shutil.copy(path, source)
        (source / "index.md").write_text(_index(lessons, repo), encoding="utf-8")
        options = ["-q", "-W", "--keep-going"]  # each warning is an error, and all are shown
        options += ["-c", str(HERE), "-d", str(Path(temp_dir, "doctrees"))]
        if build_main([*options, str(source), str(draft)]) != 0:
            raise ValueError(f"{folder} was not written: see above")
        for lesson in lessons:  # what a page offers to download stands alone
            nbformat.write(colab.standalone(lesson, repo), draft / "_sources" / lesson.name)


def _index(lessons: list[Path], repo: str | None) -> str:
    """Write the first screen of README, and its groups with an entry for each lesson."""
    by_name = {lesson.name: lesson for lesson in lessons}
    readme = Path("README.md").read_text("utf-8")
    opening, _, rest = readme.partition("\n## Start here\n")
    text = re.sub(r"\]\((notebooks|\.github)/", "](", opening)  # all pages are in one folder
    text += (HERE / "index.md").read_text("utf-8")
    # A group is a name in bold, its purpose, and a table of lessons.
    for group, purpose, table in re.findall(r"\*\*(.+)\*\*(.+)\.\n\n((?:\|.+\n)+)", rest):
        text += f"\n## {group}{purpose}\n"
        for name in re.findall(r"\(notebooks/(\S+\.ipynb)\)", table):
            text += _entry(by_name[name], repo)
    return text


def _entry(lesson: Path, repo: str | None) -> str:
    """Write what the index says of a lesson: title, promise, doors with their times, a picture."""
    notebook = files.read(lesson)
    title, promise, reading, running = re.match(FIRST_CELL, notebook.cells[0].source).groups()
    run = f'<a href="_sources/{lesson.name}" download>download</a> and run'
    if repo:
        run = f"[open in Colab]({colab.OPEN.format(repo=repo)}{lesson.name}), or {run}"
    text = f"\n### [{title}]({lesson.name})\n\n{promise}\n\n"
    text += f"[Read]({lesson.name}): {reading}; {run}: {running}.\n"
    png = _largest_figure(notebook)
    if png:
        name = hashlib.sha256(base64.b64decode(png)).hexdigest()  # under which MyST-NB writes it
        text += f'\n<img class="thumbnail" src="_images/{name}.png" alt="">\n'
    return text


def _largest_figure(notebook: NotebookNode) -> str:
    """Return the saved figure with most details, in base64; `""` if there is none."""
    largest = ""
    for cell in files.code_cells(notebook):
        for output in cell.outputs:
            png = output.get("data", {}).get("image/png", "")
            if len(png) > len(largest):
                largest = png
    return largest


if __name__ == "__main__":
    endings.cleanly_on_signals()
    endings.in_one_sentence()
    try:
        build()
    except ValueError as error:
        sys.exit(str(error))
    print(f"the reading edition is in {FOLDER}: open {FOLDER}/index.html")
