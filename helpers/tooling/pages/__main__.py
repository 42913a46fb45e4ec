"""The reading edition: the lessons as a book of pages, in a folder that needs nothing else.

Run from the folder that holds `notebooks/`, `python -m helpers.tooling.pages` writes build/html/
with Sphinx, MyST-NB and sphinx-book-theme. Each lesson has a button that downloads its copy for
Colab and, if the variable REPO names a repository on GitHub, `owner/name`, one that opens it there.
"""

import os
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
    lessons = files.find()
    with drafts.replaced(folder) as draft, tempfile.TemporaryDirectory() as desk:
        source = Path(desk, "source")
        source.mkdir()
        for path in (*lessons, HERE / "index.md"):
            shutil.copy(path, source)
        options = ["-q", "-W", "--keep-going", "-c", str(HERE), "-d", str(Path(desk, "doctrees"))]
        if build_main([*options, str(source), str(draft)]):
            raise ValueError(f"{folder} was not written: see above")
        for lesson in lessons:  # what a page offers to download stands alone
            copy = colab.standalone(lesson, os.environ.get("REPO"))
            nbformat.write(copy, draft / "_sources" / lesson.name)


if __name__ == "__main__":
    end_cleanly_on_signals()
    try:
        build()
    except ValueError as error:
        sys.exit(str(error))
    print(f"the reading edition is in {FOLDER}: open {FOLDER}/index.html")
