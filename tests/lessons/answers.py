"""Answers to the exercises of a lesson, right ones and wrong ones, each with its verdict.

A file of answers, `NN_name.py`, holds blocks: a line `# %% solution-1: wrong shape` that names the
solution in whose place the answer stands and says how its verdict begins, then the answer. One that
differs little from another is a diff in comments, `# - ` before what goes and `# + ` before what
comes: of the first that has what goes, among the solution and the answers above.
"""

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from nbformat import NotebookNode

from helpers.exercises import STILL_TO_DO
from helpers.tooling.lesson import copies


def read(file: Path) -> list[tuple[str, str, str]]:
    """Read the blocks of a file: the solution, its verdict, the answer; without a file, none."""
    text = file.read_text("utf-8") if file.exists() else ""
    parts = re.findall(r"(?ms)^# %% ([\w-]+): ([^\n]*)\n(.*?)(?=^# %% |\Z)", text)
    return [(solution, verdict, source.strip()) for solution, verdict, source in parts]


def answers(
    notebook: NotebookNode, blocks: Sequence[tuple[str, str, str]]
) -> Iterator[tuple[str, str, NotebookNode, str]]:
    """Yield each answer to a lesson's exercises: name, source, check, how its verdict must begin.

    For each exercise these are the student's stub, its answers, and then the solution again, which
    must be correct still: no answer before it has left anything behind.
    """
    for solution, check in copies.exercises(notebook):
        name = ast.parse(solution.source).body[0].name
        yield f"{solution.id}-stub", copies.stub(solution.source), check, f"{STILL_TO_DO}{name}"
        sources = [solution.source]  # what a diff may start from
        for of, verdict, source in blocks:
            if of != solution.id:
                continue
            if source.startswith("#"):
                source = _edited(source, sources)
            number = len(sources)
            sources.append(source)
            yield f"{solution.id}-answer-{number}", source, check, verdict
        yield f"{solution.id}-again", solution.source, check, "correct"


def _edited(diff: str, sources: Sequence[str]) -> str:
    """Apply a diff to the first of some answers that has all that goes, each part once."""
    lines = re.findall(r"(?m)^# ([-+])(?: (.*))?$", diff)
    parts = []
    for _, group in itertools.groupby(lines, lambda line: line[0]):
        parts.append("\n".join(text for _, text in group))
    goes, comes = parts[::2], parts[1::2]
    for source in sources:
        if all(source.count(old) == 1 for old in goes):
            for old, new in zip(goes, comes, strict=True):
                source = source.replace(old, new)
            return source
    raise ValueError(f"no answer has what goes in:\n{diff}")
