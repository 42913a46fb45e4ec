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
from sphinx.cmd.build import build_main

from helpers.tooling import colab
from helpers.tooling.lesson import drafts, files
from helpers.tooling.lesson.execution import end_cleanly_on_signals

FOLDER = Path("build/html")
HERE = Path(__file__).parent


def build(folder: Path = FOLDER) -> None:
    """Write all pages; the folder is there in full or, after a warning of Sphinx, as before."""
    lessons, repo = files.find(), os.environ.get("REPO")
    with drafts.replaced(folder) as draft, tempfile.TemporaryDirectory() as desk:
        source = Path(desk, "source")
        source.mkdir()
        for path in (*lessons, *Path(".github").glob("picture.png")):
            shutil.copy(path, source)
        (source / "index.md").write_text(_index(lessons, repo), encoding="utf-8")
        options = ["-q", "-W", "--keep-going", "-c", str(HERE), "-d", str(Path(desk, "doctrees"))]
        if build_main([*options, str(source), str(draft)]):
            raise ValueError(f"{folder} was not written: see above")
        for lesson in lessons:  # what a page offers to download stands alone
            nbformat.write(colab.standalone(lesson, repo), draft / "_sources" / lesson.name)


def _index(lessons: list[Path], repo: str | None) -> str:
    """Write the first screen of README, and its groups with an entry for each lesson."""
    readme, named = Path("README.md").read_text("utf-8"), {path.name: path for path in lessons}
    opening, _, rest = readme.partition("\n## Two commands\n")
    text = re.sub(r"\]\((notebooks|\.github)/", "](", opening) + (HERE / "index.md").read_text(
        "utf-8"
    )
    for group, purpose, table in re.findall(r"\*\*(.+)\*\*(.+)\.\n\n((?:\|.+\n)+)", rest):
        text += f"\n## {group}{purpose}\n"
        for name in re.findall(r"\(notebooks/(\S+\.ipynb)\)", table):
            text += _entry(named[name], repo)
    return text


def _entry(lesson: Path, repo: str | None) -> str:
    """Write what the index says of a lesson: title, promise, doors with their times, a picture."""
    notebook = files.read(lesson)
    first = r"# (.+)\n\n(.+)\n(?:.*\n)*\*Reading: (.+?)\. Running: (.+)\.\*"
    title, promise, reading, running = re.match(first, notebook.cells[0].source).groups()
    run = f'<a href="_sources/{lesson.name}" download>download</a> and run'
    if repo:
        run = f"[open in Colab]({colab.OPEN.format(repo=repo)}{lesson.name}), or {run}"
    text = f"\n### [{title}]({lesson.name})\n\n{promise}\n\n"
    text += f"[Read]({lesson.name}): {reading}; {run}: {running}.\n"
    outputs = [output for cell in files.code_cells(notebook) for output in cell.outputs]
    saved = [output.get("data", {}).get("image/png", "") for output in outputs]
    if png := max(saved, key=len, default=""):
        name = hashlib.sha256(base64.b64decode(png)).hexdigest()  # under which MyST-NB writes it
        text += f'\n<img class="thumbnail" src="_images/{name}.png" alt="">\n'
    return text


if __name__ == "__main__":
    end_cleanly_on_signals()
    try:
        build()
    except ValueError as error:
        sys.exit(str(error))
    print(f"the reading edition is in {FOLDER}: open {FOLDER}/index.html")
