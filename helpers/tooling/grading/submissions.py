"""Submissions as files: which student, and which cells answer which exercise."""

import ast
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nbformat import NotebookNode

from helpers.tooling.lesson import files

LARGEST = 50 * 2**20
"""Bytes; a notebook that is larger is not read."""
NAME = re.compile(r"(?m)^student = ([\"'])(.+?)\1")
"""How the cell for the name gives it."""


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
        editions: The notebooks that students were given; only what differs from them is theirs.

    Raises:
        ValueError: There is no such folder, or nothing in it.
    """
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    entries = sorted(each for each in folder.iterdir() if not each.name.startswith((".", "_")))
    if not entries:
        raise ValueError(f"nothing is in {folder}: it holds NAME.ipynb or NAME/{lesson.name}")
    asked = exercises(files.read(lesson))
    given = {cell.source.strip() for each in editions for cell in files.code_cells(each)}
    known = set().union(*map(_imported, given))
    found = []
    for entry in entries:
        one = Submission(entry.name, entry.stem if entry.is_file() else entry.name)
        try:
            cells = _code_cells(_notebook_of(entry, lesson))
            names = NAME.search("\n".join(source for _, _, source in cells))
            one.student = names[2].strip() if names else one.student
            if not any(_defined(source) & {each.name for each in asked} for *_, source in cells):
                sought = ", ".join(each.name for each in asked)
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
        same = [each.file for each in found if each.student == one.student and each is not one]
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
    cells = json.loads(path.read_text("utf-8-sig"))["cells"]
    return [
        (place, str(cell.get("id") or _colab_id(cell)), _text("".join(cell["source"])))
        for place, cell in enumerate(cells, 1)
        if cell["cell_type"] == "code"
    ]


def _text(source: str) -> str:
    """Replace what JSON can hold and no text file: halves of characters."""
    return source.encode(errors="replace").decode()


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
        known: What the lesson imports, so that no cell is taken for importing it once more.
    """
    found = {}
    for exercise in asked:
        mine = [c for c in own if c[1] == exercise.solution.id or exercise.name in _defined(c[2])]
        others = [cell for cell in own if cell not in mine]
        taken = mine[-1:]
        while needed := [
            cell
            for cell in others
            if cell not in taken
            and (_defined(cell[2]) | (_imported(cell[2]) - known))
            & set().union(*(_used(c[2]) for c in taken))
        ]:
            taken += needed
        if taken:
            taken.sort()
            source = "\n\n".join(_without_magics(source) for *_, source in taken)
            found[exercise.number] = Answer(source, tuple(place for place, *_ in taken))
    return found


def _defined(source: str) -> set[str]:
    """List the names that a cell defines at its top, as far as can be read in it."""
    body = _statements(source)
    if body is None:
        return set(re.findall(r"(?m)^(?:async )?(?:def|class) (\w+)", source))
    named = {line.name for line in body if isinstance(line, ast.FunctionDef | ast.ClassDef)}
    assigned = [line for line in body if isinstance(line, ast.Assign | ast.AnnAssign)]
    names = [n for line in assigned for n in ast.walk(line) if isinstance(n, ast.Name)]
    return named | {each.id for each in names if _stored(each)}


def _imported(source: str) -> set[str]:
    """List the names under which a cell imports at its top."""
    lines = [n for n in _statements(source) or [] if isinstance(n, ast.Import | ast.ImportFrom)]
    return {(n.asname or n.name).partition(".")[0] for line in lines for n in line.names}


def _statements(source: str) -> list[ast.stmt] | None:
    """Parse a cell, if that is possible."""
    try:
        return ast.parse(_without_magics(source)).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _used(source: str) -> Collection[str]:
    nodes = [node for line in _statements(source) or [] for node in ast.walk(line)]
    return {each.id for each in nodes if isinstance(each, ast.Name) and not _stored(each)}


def words(source: str) -> set[str]:
    """List all words of an answer: names, attributes, imports, and what stands in quotes."""
    try:
        nodes = ast.walk(ast.parse(source))
    except (SyntaxError, ValueError, MemoryError):
        return set()
    found = [getattr(node, each, "") for node in nodes for each in ("id", "attr", "name", "value")]
    return {part for each in found if isinstance(each, str) for part in each.split(".")}


def _stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _without_magics(source: str) -> str:
    """Leave out what only Jupyter runs, `%time` and `!ls`."""
    return re.sub(r"(?m)^([ \t]*)[%!?].*$", r"\1pass", source)
