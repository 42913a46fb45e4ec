"""Execute lessons and save their outputs in place, in the one form that never changes by itself.

Run from the folder that holds `notebooks/`: `python -m helpers.tooling.outputs --help`.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from helpers.tooling.lesson import drafts, files, form
from helpers.tooling.lesson.execution import Execution, end_cleanly_on_signals


def refresh(lesson: Path, *, timings: bool) -> None:
    """Execute a lesson in its own folder and save it with its new outputs.

    An output that nbval does not compare (a timing, a version) would be another each time, so
    the saved one stays as long as its cell's source does.

    Args:
        lesson: The notebook; it changes only when all of it has run, and then at once.
        timings: Renew those outputs too.

    Raises:
        ValueError: The lesson failed, with a sentence that says where and how; or its file cannot
            be written.
    """
    notebook = files.read(lesson)
    kept = {} if timings else _still_valid(notebook)
    execution = Execution(lesson)
    # Progress bars are for somebody who watches; what they leave behind would be saved. And what a
    # lesson says of its timings, it says of a CPU.
    environment = {**os.environ, "TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        executed = execution.run(environment=environment)
    except Exception as error:
        raise ValueError(execution.failure(error)) from error
    for cell, new in zip(notebook.cells, executed.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs = kept.get(cell.id, new.outputs)
    form.normalise(notebook)
    nbformat.validate(notebook)
    with drafts.replaced_file(lesson) as draft:
        nbformat.write(notebook, draft)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0, 1 when a lesson failed, 2 when there is none such as asked for.
    """
    parser = argparse.ArgumentParser(prog="python -m helpers.tooling.outputs", description=__doc__)
    parser.add_argument("lessons", nargs="*", help="numbers or names; none means all")
    parser.add_argument("--timings", action="store_true", help="renew outputs not compared, too")
    asked = parser.parse_args(arguments)
    try:
        chosen = files.choose(asked.lessons)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    failures = []
    for lesson in chosen:
        try:
            refresh(lesson, timings=asked.timings)
        except ValueError as error:
            failures.append(str(error))
    for failure in failures:
        print(f"failed, and left as it was: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _still_valid(notebook: NotebookNode) -> dict[str, list[NotebookNode]]:
    """Find the saved outputs, by cell id, that stay: not compared, and of the present source."""
    return {
        cell.id: cell.outputs
        for cell in files.code_cells(notebook)
        if not files.is_compared(cell) and cell.metadata.get("output_of") == form.source_mark(cell)
    }


if __name__ == "__main__":
    end_cleanly_on_signals()
    sys.exit(main())
