"""Answers to the exercises of a lesson: which must be judged how, and whether they were.

A file of answers, `NN_name.py`, holds blocks: a line `# %% solution-1: wrong shape` that names the
solution in whose place the answer stands and says how its verdict begins, then the answer. One that
differs little from another is a diff in comments, `# - ` before what goes and `# + ` before what
comes: of the first that has what goes, among the solution and the answers above.
"""

import ast
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nbformat import NotebookNode

from helpers.exercises import STILL_TO_DO
from helpers.tooling.lesson import copies, files

HEADING = re.compile(r"(?m)^# %% ([\w-]+): (.*)$")
CORRECT = "correct"
"""How the verdict on a right answer begins."""


class Block(NamedTuple):
    """One block of a file of answers."""

    solution: str
    verdict: str
    source: str


@dataclass(frozen=True)
class Answer:
    """An answer, to be run in its lesson in place of the solution."""

    name: str
    source: str
    check: NotebookNode
    verdict: str
    """How the verdict must begin."""
    printed: str | None = None
    """All that the check must print, if that is known."""


def exercises(notebook: NotebookNode) -> list[tuple[NotebookNode, NotebookNode]]:
    """List the solutions of a lesson, each with the cell that checks it."""
    pairs = zip(notebook.cells, notebook.cells[1:], strict=False)
    return [(each, check) for each, check in pairs if "solution" in files.tags(each)]


def read(file: Path) -> list[Block]:
    """Read a file of answers; one that is not there holds none."""
    parts = HEADING.split(file.read_text("utf-8") if file.exists() else "")[1:]
    return [Block(*map(str.strip, parts[n : n + 3])) for n in range(0, len(parts), 3)]


def missing(notebook: NotebookNode, blocks: Sequence[Block]) -> list[str]:
    """List the exercises that lack a wrong answer or two right ones, and the unknown answers."""
    ids = [solution.id for solution, _ in exercises(notebook)]
    wrong = {each.solution for each in blocks if not each.verdict.startswith(CORRECT)}
    right = [each.solution for each in blocks if each.verdict.startswith(CORRECT)]
    found = [f"{each} has no wrong answer" for each in ids if each not in wrong]
    found += [f"{each} has not two right answers" for each in ids if right.count(each) < 2]
    unknown = dict.fromkeys(each.solution for each in blocks if each.solution not in ids)
    return found + [f"the lesson has no solution {each}" for each in unknown]


def answers(notebook: NotebookNode, blocks: Sequence[Block]) -> list[Answer]:
    """List all answers to the exercises of a lesson, in the order in which they shall be run.

    For each exercise these are the student's stub, its answers, and then the solution again, of
    which the check must print what is saved: no answer before it has left anything behind.
    """
    found = []
    for solution, check in exercises(notebook):
        whole = [solution.source]
        stub, name = copies.stub(solution.source), ast.parse(solution.source).body[0].name
        found.append(Answer(f"{solution.id} stub", stub, check, f"{STILL_TO_DO}{name}"))
        given = [each for each in blocks if each.solution == solution.id]
        for number, each in enumerate(given, 1):
            source = each.source
            if source.startswith("#"):
                source = edited(source, whole)
            else:
                whole.append(source)
            found.append(Answer(f"{solution.id} answer {number}", source, check, each.verdict))
        saved = "".join(each.get("text", "") for each in check.outputs)
        found.append(Answer(f"{solution.id} again", solution.source, check, CORRECT, saved))
    return found


def edited(diff: str, sources: Sequence[str]) -> str:
    """Apply a diff to the first of some answers that has all that goes, each part once."""
    lines = re.findall(r"(?m)^# ([-+])(?: (.*))?$", diff)
    parts = [
        (sign, "\n".join(text for _, text in group))
        for sign, group in itertools.groupby(lines, lambda line: line[0])
    ]
    changes = [*zip(parts[::2], parts[1::2], strict=True)]
    for source in sources if changes else ():
        if all(source.count(old) == 1 for (_, old), _ in changes):
            for (_, old), (_, new) in changes:
                source = source.replace(old, new)
            return source
    raise ValueError(f"no answer has what goes in:\n{diff}")


def complaint(answer: Answer, printed: str) -> str | None:
    """Return what is wrong with the verdict on an answer, given what it and its check printed."""
    begins = re.search(rf"^Exercise \d+: {re.escape(answer.verdict)}", printed, re.M)
    called_correct = re.search(rf"^Exercise \d+: {CORRECT}", printed, re.M)
    if not begins or (called_correct and not answer.verdict.startswith(CORRECT)):
        expected = f"a verdict that begins `{answer.verdict}`"
    elif answer.printed is not None and printed != answer.printed:
        expected = f"what is saved:\n{answer.printed}"
    else:
        return None
    return f"{answer.name}: expected {expected}\ngot:\n{printed}\nfor:\n{answer.source}"
