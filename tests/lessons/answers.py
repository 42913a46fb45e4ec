"""Answers to the exercises of a lesson, right ones and wrong ones, each with its verdict.

A file of answers, `exercises/NN_name.py`, holds blocks: a line `# %% solution-1: wrong shape` that
names the solution in whose place the answer stands and says how its verdict begins, then the
answer. One that differs little from another is a diff in comments, `# - ` before what goes and
`# + ` before what comes: of the first that has what goes, among the solution and the answers above.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nbformat import NotebookNode

from helpers.exercises import STILL_TO_DO
from helpers.tooling.lesson import copies

FOLDER = Path(__file__).with_name("exercises")


class Answer(NamedTuple):
    """What stands in place of a solution."""

    name: str  # of the solution, where it is read from a file
    verdict: str  # how it must begin
    source: str


def read(stem: str) -> list[Answer]:
    """Read the answers to the lesson of this name; without a file, none."""
    file = FOLDER / f"{stem}.py"
    if not file.exists():
        return []
    answers = []
    _, *blocks = re.split(r"(?m)^# %% ", file.read_text("utf-8"))
    for block in blocks:
        first_line, _, source = block.partition("\n")
        solution, _, verdict = first_line.partition(": ")
        answers.append(Answer(solution, verdict, source.strip()))
    return answers


def to_try(
    notebook: NotebookNode, given: Sequence[Answer]
) -> Iterator[tuple[NotebookNode, Answer]]:
    """Yield the answers to a lesson's exercises, each with a name of its own, and its check.

    For each exercise these are the student's stub, the given answers, and then the solution again,
    which must be correct still: no answer before it has left anything behind.
    """
    for solution, check in copies.exercises(notebook):
        definition = ast.parse(solution.source).body[0]
        still_to_do = STILL_TO_DO + definition.name
        yield check, Answer(f"{solution.id}-stub", still_to_do, copies.stub(solution.source))
        sources = [solution.source]  # what a diff may start from
        for answer in given:
            if answer.name != solution.id:
                continue
            source = answer.source
            if source.startswith("#"):
                source = _edited(source, sources)
            name = f"{solution.id}-answer-{len(sources)}"
            sources.append(source)
            yield check, Answer(name, answer.verdict, source)
        yield check, Answer(f"{solution.id}-again", "correct", solution.source)


def _edited(diff: str, sources: Sequence[str]) -> str:
    """Apply a diff to the first of some answers that has all that goes, each part once."""
    goes = []
    comes = []
    last_sign = "+"
    for sign, text in re.findall(r"(?m)^# ([-+]) ?(.*)$", diff):
        if sign == "-" and last_sign == "+":  # the next part begins
            goes.append([])
            comes.append([])
        lines = goes[-1] if sign == "-" else comes[-1]
        lines.append(text)
        last_sign = sign
    old_parts = ["\n".join(lines) for lines in goes]
    new_parts = ["\n".join(lines) for lines in comes]
    for source in sources:
        if all(source.count(old) == 1 for old in old_parts):
            for old, new in zip(old_parts, new_parts, strict=True):
                source = source.replace(old, new)
            return source
    raise ValueError(f"no answer has what goes in:\n{diff}")
