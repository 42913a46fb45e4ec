"""Submissions as files: which student, and which cells answer which exercise."""

import ast
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nbformat import NotebookNode

from helpers.tooling.grading import syntax
from helpers.tooling.lesson import files

FUTURE = re.compile(r"(?m)^from __future__ import .*$")
LARGEST = 50 * 2**20
"""Bytes; a notebook that is larger is not read."""


class Exercise(NamedTuple):
    """One exercise of a lesson: its task in Markdown, its solution and its check."""

    number: int
    name: str
    """Of the function or class that it asks for."""
    task: str
    solution: NotebookNode
    check: NotebookNode


class Answer(NamedTuple):
    """What is taken of a submission for one exercise."""

    source: str
    cells: tuple[int, ...]
    """The positions of the cells that it comes from, from 1."""


@dataclass
class Submission:
    """What one student handed in."""

    file: str
    """The file or folder, by which submissions are told apart."""
    student: str
    answers: dict[int, Answer] = field(default_factory=dict)
    """By the number of the exercise."""
    problem: str = ""
    """Why nothing of it can be graded, if so."""
    notes: list[str] = field(default_factory=list)


def exercises(lesson: NotebookNode) -> list[Exercise]:
    """List the exercises of a lesson: each is a task, a solution and its check."""
    triples = zip(lesson.cells, lesson.cells[1:], lesson.cells[2:], strict=False)
    found = [each for each in triples if "solution" in files.tags(each[1])]
    return [
        Exercise(n, ast.parse(solution.source).body[0].name, task.source, solution, check)
        for n, (task, solution, check) in enumerate(found, 1)
    ]


def read(folder: Path, lesson: Path, editions: Sequence[NotebookNode]) -> list[Submission]:
    """Read what lies in a folder: for each student a notebook, or a folder with one.

    Args:
        folder: The folder.
        lesson: The lesson that they answer.
        editions: The notebooks that students were given, the lesson's own form first; only what
            differs from them is theirs.

    Raises:
        ValueError: There is no such folder, or nothing in it.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    entries = sorted(each for each in folder.iterdir() if not each.name.startswith((".", "__")))
    if not entries:
        raise ValueError(f"nothing is in {folder}: it holds NAME.ipynb or NAME/{lesson.name}")
    asked = exercises(files.read(lesson))
    given = {cell.source.strip() for each in editions for cell in files.code_cells(each)}
    known = set().union(*(syntax.reached(cell.source) for cell in files.code_cells(editions[0])))
    found = []
    for entry in entries:
        one = Submission(*map(_text, (entry.name, entry.stem if entry.is_file() else entry.name)))
        try:
            cells = _code_cells(_notebook_of(entry, lesson))
            one.student = next(filter(None, map(_student, cells)), one.student)
            sought = ", ".join(each.name for each in asked)
            if not {each.name for each in asked} & set().union(*map(_defined, cells)):
                raise ValueError(f"it is of another lesson: it defines none of {sought}")
            own = [cell for cell in cells if cell[2].strip() not in given]
            one.answers = _answers(own, asked, known)
        except (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError) as error:
            one.problem = f"{error}" if type(error) is ValueError else f"it is no notebook: {error}"
        copied = [
            str(each.number)
            for each in asked
            if each.number in one.answers
            and one.answers[each.number].source.strip() == each.solution.source.strip()
        ]
        if copied:
            one.notes.append(f"the lesson's own solution, word for word: {', '.join(copied)}")
        found.append(one)
    for one in found:
        name = one.student.casefold()
        same = [each.file for each in found if each.student.casefold() == name and each is not one]
        if same:
            one.notes.append(f"the same name is on {', '.join(same)}")
    return found


def _notebook_of(entry: Path, lesson: Path) -> Path:
    """Find the notebook that is meant, in what a student handed in."""
    if entry.is_dir():
        there = [p for p in sorted(entry.rglob("*.ipynb")) if ".ipynb_checkpoints" not in p.parts]
        there = [path for path in there if path.name == lesson.name] or there
        if len(there) != 1:
            raise ValueError(f"it holds {len(there) or 'no'} notebooks, not one {lesson.name}")
        entry = there[0]
    if entry.suffix != ".ipynb" or not entry.is_file():
        raise ValueError("it is no notebook")
    if entry.stat().st_size > LARGEST:
        raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
    return entry


def _code_cells(path: Path) -> list[tuple[int, str, str]]:
    """Read the cells that run: the position, the id and the source of each."""
    notebook = json.loads(path.read_text("utf-8-sig"))
    if "cells" not in notebook:
        raise ValueError("it holds no cells: in Jupyter, open it and save it again")
    return [
        (place, str(cell.get("id") or _colab_id(cell)), _text("".join(cell["source"])))
        for place, cell in enumerate(notebook["cells"], 1)
        if cell["cell_type"] == "code"
    ]


def _text(source: str) -> str:
    """Leave out what a name of a file or JSON can hold, and no text file: halves of characters."""
    return source.encode(errors="backslashreplace").decode().lstrip("\ufeff")


def _defined(cell: tuple[int, str, str]) -> set[str]:
    return syntax.defined(cell[2])


def _student(cell: tuple[int, str, str]) -> str:
    """Return the name that a cell `student = "..."` gives, or nothing."""
    for line in syntax.statements(cell[2]) or []:
        match line:
            case ast.Assign([ast.Name("student")], ast.Constant(str(name))):
                return _text(name).strip()
    return ""


def _colab_id(cell: dict[str, Any]) -> str:
    """Return the id of a cell that Colab has saved: it stands in the metadata."""
    return cell.get("metadata", {}).get("id", "")


def _answers(
    own: Sequence[tuple[int, str, str]], asked: Sequence[Exercise], known: Collection[str]
) -> dict[int, Answer]:
    """Find the last cell that answers each exercise, and the cells that define what it uses.

    Args:
        own: The position, the id and the source of each cell that the student changed or added.
        asked: The exercises.
        known: What the lesson imports: no cell is taken for importing or changing it.
    """
    found = {}
    for exercise in asked:
        answering = [cell for cell in own if exercise.name in _defined(cell)]
        taken = (answering or [cell for cell in own if cell[1] == exercise.solution.id])[-1:]
        others = [cell for cell in own if cell not in (*answering, *taken)]
        wanted = {"*"}.union(*(syntax.used(source) for *_, source in taken))
        while given := [
            c for c in others if wanted & (_defined(c) | (syntax.reached(c[2]) - known))
        ]:
            taken += given
            others = [cell for cell in others if cell not in given]
            wanted = wanted.union(*(syntax.used(source) for *_, source in given))
        if taken:
            found[exercise.number] = _joined(sorted(taken))
    return found


def _joined(cells: Sequence[tuple[int, str, str]]) -> Answer:
    """Join cells to one, at the top of which stand the lines that must stand there."""
    parts = [syntax.python(source) for *_, source in cells]
    ahead = [line for part in parts for line in FUTURE.findall(part)]
    source = "\n\n".join(FUTURE.sub("", part) for part in parts)
    return Answer("\n".join([*ahead, source]), tuple(place for place, *_ in cells))
