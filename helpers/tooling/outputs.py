"""Execute lessons and save their outputs in place, in a reproducible form.

Run from the folder that holds `notebooks/`: `python -m helpers.tooling.outputs --help`.
"""

import argparse
import base64
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat

from helpers.tooling.lesson import drafts, endings, files, form
from helpers.tooling.lesson.execution import execute

PICTURE = Path(".github/picture.png")
"""The picture of README.md: the figure that lesson 1 saves."""


def picture(lesson: Path) -> bytes:
    """Return the one figure that a lesson has saved."""
    figures = []
    for cell in files.code_cells(files.read(lesson)):
        for output in cell.outputs:
            png = output.get("data", {}).get("image/png")
            if png:
                figures.append(png)
    (figure,) = figures
    return base64.b64decode(figure)


def refresh(lesson: Path, *, timings: bool) -> str | None:
    """Execute a lesson in its own folder and save it with its new outputs.

    An output that nbval does not compare (a timing, a version) stays as long as its cell's source
    does, unless `timings` are renewed. Returns how the lesson failed, if it did; its file stays.

    Raises:
        ValueError: Another process executes it, or no kernel can be started.
    """
    draft = Path("build", "outputs", lesson.name)
    with drafts.alone(draft):
        done = execute(lesson, draft)
        if done.failure:
            return done.failure
        notebook = files.read(lesson)
        for cell, new in zip(notebook.cells, done.notebook.cells, strict=True):
            if cell.cell_type == "code" and (timings or not form.keeps_output(cell)):
                cell.outputs = new.outputs
        form.normalize(notebook)
        with drafts.replaced(lesson) as new_lesson:
            nbformat.write(notebook, new_lesson)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0, 1 when a lesson failed, 2 when there is no such lesson."""
    parser = argparse.ArgumentParser(prog="python -m helpers.tooling.outputs", description=__doc__)
    parser.add_argument("lessons", nargs="*", help="numbers or names; none means all")
    parser.add_argument("--timings", action="store_true", help="renew uncompared outputs, too")
    options = parser.parse_args(arguments)
    try:
        chosen = files.choose(options.lessons)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    # Progress bars are for live viewers; what they leave behind would be saved. And what a lesson
    # says about its timings holds for a CPU.
    os.environ.update(TQDM_DISABLE="1", CUDA_VISIBLE_DEVICES="")
    failures = []
    for lesson in chosen:
        try:
            failure = refresh(lesson, timings=options.timings)
        except ValueError as error:  # another process has it
            failure = str(error)
        if failure:
            failures.append(failure)
        if lesson.stem == "01_naive_loop":
            with drafts.replaced(PICTURE) as draft:
                draft.write_bytes(picture(lesson))
    for failure in failures:
        print(f"failed, and left as it was: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    endings.cleanly_on_signals()
    endings.in_one_sentence()
    sys.exit(main())
