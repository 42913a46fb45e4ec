"""The reading edition: the lessons as a book of pages, in a folder that needs nothing else.

Run from the folder that holds `notebooks/`, `python -m helpers.tooling.pages` writes build/html/
with Sphinx, MyST-NB and sphinx-book-theme.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import build_main

from helpers.tooling.lesson import drafts, files
from helpers.tooling.lesson.execution import end_cleanly_on_signals

FOLDER = Path("build/html")
HERE = Path(__file__).parent


def build(folder: Path = FOLDER, *, repo: str | None = None) -> None:
    """Write all pages; the folder is there in full or as it was before.

    Args:
        folder: Where to.
        repo: The repository on GitHub, `owner/name`, whose copies of the lessons for Colab the
            pages link to; None means no such links.

    Raises:
        ValueError: There are no lessons, the folder cannot be written, or Sphinx warned of
            something, which it has printed.
    """
    lessons = files.find()
    with drafts.replaced(folder) as draft, tempfile.TemporaryDirectory() as desk:
        source = Path(desk, "source")
        source.mkdir()
        for path in (*lessons, HERE / "index.md"):
            shutil.copy(path, source)
        options = ["-q", "-W", "--keep-going", "-c", str(HERE), "-d", str(Path(desk, "doctrees"))]
        if repo:
            options += ["-D", f"colab_repo={repo}"]
        if build_main([*options, str(source), str(draft)]):
            raise ValueError(f"{folder} was not written: see above")


if __name__ == "__main__":
    end_cleanly_on_signals()
    parser = argparse.ArgumentParser(prog="python -m helpers.tooling.pages", description=__doc__)
    parser.add_argument("--repo", metavar="OWNER/NAME", help="link to its copies for Colab")
    try:
        build(repo=parser.parse_args().repo)
    except ValueError as error:
        sys.exit(str(error))
    print(f"the reading edition is in {FOLDER}: open {FOLDER}/index.html")
