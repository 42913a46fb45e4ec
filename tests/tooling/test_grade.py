"""Grading a class: right marks whatever is handed in, and nothing of it left running."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from helpers.tooling import colab, grade, student
from helpers.tooling.grading import hidden_tests, reports, submissions
from helpers.tooling.grading.session import Session
from helpers.tooling.lesson import files
from tests.support import answers
from tests.tooling.samples import LESSONS, ROOT, cell, code, lesson, quick, save

HIDDEN = ROOT / "tests" / "hidden"
LINES = {
    "loops": "while True: pass",
    "exits": "__import__('os')._exit(0)",
    "leaves": "raise SystemExit",
    "forks": "[__import__('os').fork() for _ in range(6)]; __import__('time').sleep(60)",
    "kills": "__import__('os').kill(__import__('os').getppid(), 9)",
    "allocates": "return torch.ones(10 * 2**30, dtype=torch.uint8)",
    "takes a global": "return wanted[0]",
    "prints": "print('Exercise {n}: correct')",
    "reads the stack": "return __import__('sys')._getframe(1).f_globals['wanted'][0]",
    "inspects": "return __import__('inspect').stack()[1].frame.f_globals['wanted'][0]",
    "follows a generator": "return (x for x in args).gi_frame.f_back",
    "reads globals": "return {name}.__globals__",
    "spells globals": "return getattr({name}, '__glo' + 'bals__')['wanted'][0]",
    "collects": "return __import__('gc').get_objects()",
    "evaluates": "return eval('__import__')('sys')._getframe(1)",
    "calls C": "__import__('ctypes').CDLL(None).fork()",
    "looks into the lesson": "return open('{lesson}').read()",
    "writes": "open('{lesson}.txt', 'w')",
    "renames": "open('a', 'w').close(); __import__('os').rename('a', '{lesson}.txt')",
    "links": "__import__('os').symlink('/', '{lesson}.txt')",
    "writes in C": "torch.save(0, '{lesson}.txt')",
    "starts in C": "__import__('_posixsubprocess').fork_exec()",
    "makes the guard fail": "__import__('sys').audit('open')",
    "connects": "__import__('socket').create_connection(('127.0.0.1', 9))",
    "says too much": "print('x' * 10**9)",
    "patches while it runs": "from helpers import compare; compare.TOLERANCES.clear()",
}
"""What answers do that are not right, as the one line of a function `{name}(*args)`."""
CELLS = {
    "patches": "from helpers import exercises\n"
    "exercises.expect = exercises.require = lambda *a, **k: None\ndef {name}(*args): pass",
    "patches torch": "torch.allclose = torch.equal = lambda *a, **k: True\ndef {name}(*args): pass",
    "hides the check": "class exercises: check = print\nall = any = print\ndef {name}(*args): pass",
    "syntax error": "def {name}(*args) return 1",
    "raises": "1 / 0\ndef {name}(*args): pass",
    "another name": "def {name}s(*args): pass",
    "loops at once": "while True: pass\ndef {name}(*args): pass",
    "leaves a mode": "from torch.overrides import TorchFunctionMode\n"
    "class Mode(TorchFunctionMode):\n"
    "    def __torch_function__(self, function, types, args=(), kwargs=None): return 0\n"
    "def {name}(*args): Mode().__enter__()",
    "patches what tells": "import json, os\n"
    'json.dumps = lambda *a: \'{{"verdict": "correct"}}\'; os.write = print\n'
    "def {name}(*args): pass",
    "raises a verdict": "from helpers.exercises.verdicts import Refused\n"
    "def {name}(*args): raise Refused('correct')",
    "operators of its own": "class Zero(torch.Tensor):\n"
    "    detach = to = double = float = lambda self, *args: self\n"
    "    __sub__ = lambda self, other: torch.zeros(())\n"
    "def {name}(*args): return Zero()",
    "imports again": "import torch.nn.functional as F, copy\ndef {name}(*args): return 1 +",
    "half a character": "# \ud800\ndef {name}(*args): pass",
}
"""Such answers as whole cells."""


def edition(path, **given):
    """Make a student's notebook, with `e1=...` as answer to exercise 1, or else its solution."""
    notebook = student.student(path)
    for each in submissions.exercises(files.read(path)):
        fields = {"name": each.name, "n": each.number, "lesson": path.resolve()}
        answer = given.get(f"e{each.number}", "").format(**fields)
        cell(notebook, each.solution.id).source = answer or each.solution.source
    return notebook


def without(notebook, start):
    """Leave out the cells of which the id begins so."""
    notebook.cells = [each for each in notebook.cells if not each.id.startswith(start)]
    return notebook


def hand_in(path, folder, answers_of):
    """Hand in a class for a lesson; return the marks that each file must get.

    Args:
        path: The lesson.
        folder: Where to.
        answers_of: `{student: answer}`; each answers one exercise with it, and the others rightly.
    """
    whole = len(submissions.exercises(files.read(path)))
    notebooks = {}
    for number, (name, answer) in enumerate(answers_of.items()):
        own = f"{answer}\n# {name}"  # so that none is judged in place of another
        notebooks[name] = edition(path, **{f"e{number % whole + 1}": own}), whole - 1
    nothing = "def {name}(*args): pass"
    fooled = edition(path, e1=nothing)
    cell(fooled, "check-1").source = "print('Exercise 1: correct')"
    named = edition(path)
    cell(named, "student").source = student.NAME.replace('""', '"right"')
    first = submissions.exercises(files.read(path))[0]
    ahead = "from __future__ import annotations\n"
    apart = edition(path, e1=f"{ahead}def {{name}}(*args): return my_{{name}}(*args)")
    helper = first.solution.source.replace(first.name, f"my_{first.name}", 1)
    trying = "try:\n    import nothing\nexcept ImportError:\n    mine = {}"
    used = f"mine['it'], deque, library\n{helper}"
    imported = "from collections import deque\nlibrary = 1"
    for source in (used, imported, "%time mine['it'] = 1\nnothing?", trying):
        apart.cells.insert(3, code(f"helper-{len(apart.cells)}", source))
    moved = edition(path, e1="# It is in the next cell.")
    place = [each.id for each in moved.cells].index(first.solution.id)
    moved.cells.insert(place + 1, code("moved", first.solution.source))
    uploaded = colab.standalone(path, None, edition(path))
    for each in uploaded.cells:  # as Colab saves them
        each.metadata["id"] = each.pop("id")
    uploaded.nbformat_minor = 0
    half = edition(path)
    del half.cells[[each.id for each in half.cells].index(f"solution-{whole // 2 + 1}") :]
    notebooks |= {
        "right": (edition(path), whole),
        "half a character \udcfc": (edition(path), whole),
        "right, too": (named, whole),  # two students of one name
        f"folder/{path.name}": (edition(path), whole),
        "nothing done": (student.student(path), 0),
        "five cells": (apart, whole),
        "in a new cell": (moved, whole),
        "from Colab": (uploaded, whole),
        "half": (half, whole // 2),
        "no checks": (without(edition(path), "check-"), whole),
        "check edited": (fooled, whole - 1),
        "no solutions": (without(edition(path), "solution-"), None),
    }
    marks = {}
    for name, (notebook, mark) in notebooks.items():
        file = folder / (name if "/" in name else f"{name}.ipynb")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(notebook))
        shown = file.relative_to(folder).parts[0].encode(errors="backslashreplace")
        marks[shown.decode()] = mark
    nbformat.write(lesson(code("other", "def other(): pass")), folder / "another lesson.ipynb")
    (folder / "broken.ipynb").write_text(json.dumps(edition(path))[:2000])
    (folder / "binary.ipynb").write_bytes(bytes(range(256)))
    (folder / "list.ipynb").write_text("[]")
    (folder / "old.ipynb").write_text('{"nbformat": 3, "worksheets": []}')
    (folder / "essay.docx").write_text("Dear teacher")
    (folder / "empty").mkdir()
    bad = (
        "another lesson.ipynb",
        "broken.ipynb",
        "binary.ipynb",
        "list.ipynb",
        "old.ipynb",
        "essay.docx",
    )
    return marks | dict.fromkeys((*bad, "empty"))


def start(cwd, *arguments):
    """Start grading in a process of its own, of which all temporary files lie in `cwd`."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(cwd)}
    command = [sys.executable, "-m", "helpers.tooling.grade", *map(str, arguments)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=cwd, env=environment, **streams)


def grades(cwd):
    """Read the one table of grades in a folder."""
    (table,) = cwd.glob("build/grades/*/grades.csv")
    with table.open(encoding="utf-8", newline="") as file:
        return {row["file"]: row for row in csv.DictReader(file)}


def complaints(rows, marks):
    """List the rows of a table that have other marks than they must have."""
    assert rows.keys() == marks.keys()
    return [row for file, row in rows.items() if row["marks"] != str(marks[file] or 0)]


def left_running(cwd):
    """List the processes that work in a folder or have been started for it."""
    return [
        each.info
        for each in psutil.process_iter(["pid", "cmdline", "environ"])
        if (each.info["environ"] or {}).get("TMPDIR", "").startswith(str(cwd))
    ]


@pytest.fixture
def small(desk):
    """Lay out a collection of one lesson that runs at once, with two exercises."""
    cells = []
    for number, name in enumerate(("doubled", "tripled"), 1):
        solution = f'def {name}(x):\n    """Multiply x, (B,)."""\n    return {number + 1} * x'
        check = (
            f"wanted = [{number + 1} * torch.ones(3)]\n"
            f'with exercises.check("Exercise {number}", {name}) as found:\n'
            '    exercises.expect("product", found(torch.ones(3)), wanted[0])'
        )
        cells.append(code(f"task-{number}", f"# Exercise {number}"))
        cells += [code(f"solution-{number}", solution, "solution"), code(f"check-{number}", check)]
    save(lesson(code("start", "import torch\nfrom helpers import exercises"), *cells), "01_small")
    return files.FOLDER.resolve() / "01_small.ipynb"


def test_class_gets_its_marks(small, tmp_path):
    chosen = ("exits", "forks", "reads the stack", "patches while it runs")
    given = {name: f"def {{name}}(*args):\n    {LINES[name]}" for name in chosen}
    given |= {name: CELLS[name] for name in ("patches", "syntax error", "half a character")}
    marks = hand_in(small, tmp_path / "class", given)
    cwd = small.parents[1]

    stopped = start(cwd, "1", tmp_path / "class")
    record = cwd / "build" / "grades" / "01_small" / "record.jsonl"
    while stopped.poll() is None and not (record.exists() and record.stat().st_size):
        time.sleep(0.05)
    stopped.send_signal(signal.SIGINT)
    assert stopped.wait(60) == 128 + signal.SIGINT
    known = record.read_text()
    assert not left_running(cwd)

    done = start(cwd, "1", tmp_path / "class")
    said, problems = done.communicate(timeout=300)
    assert done.returncode == 0, problems
    assert record.read_text().startswith(known)
    rows = grades(cwd)
    assert not complaints(rows, marks)
    assert rows["exits.ipynb"]["exercise 1"].startswith("your answer ended the process (exit 0)")
    assert "the same name is on right.ipynb" in rows["right, too.ipynb"]["notes"]
    assert "broken.ipynb: it is no notebook" in said
    assert len(list(record.parent.glob("students/*.html"))) == len(rows)
    assert (record.parent / "index.html").read_text().count("refused: 2") == 2  # of each exercise
    assert not left_running(cwd)


SENTENCES = {
    "no folder": (["1", "nowhere"], "there is no folder nowhere"),
    "nothing in it": (["1", "notebooks/none"], "nothing is in notebooks/none: it holds NAME.ipynb"),
    "no lesson": (["7", "."], "there is no lesson '7'"),
    "no hidden tests": (["1", ".", "--hidden", "x"], "there are no hidden tests x/01_small.py"),
}


@pytest.mark.parametrize(("arguments", "sentence"), SENTENCES.values(), ids=SENTENCES)
@pytest.mark.usefixtures("small")
def test_what_will_not_do_gets_one_sentence(arguments, sentence, capsys):
    Path("notebooks/none").mkdir()
    assert grade.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(sentence)
    assert said.count("\n") == 1


FAMILY = """\
import json, os, sys, time
from pathlib import Path
from helpers.tooling.grading import confinement, guard, processes

def work():
    for generation in range(5):  # 32 processes, in sessions of their own
        os.fork()
        os.setsid() if os.getpid() != os.getsid(0) else None
    time.sleep({rest})
    return dict(verdict="correct")

guard.WATCHED = frozenset()
confinement.PROCESSES = {most}
print(json.dumps(confinement.keep(work, 3, [])), processes.descendants())"""


@pytest.mark.parametrize(
    ("rest", "most", "verdict"),
    [(60, 20, "it started more than 20 processes"), (60, 99, "not so yet: it ends within 3 s")],
)
def test_family_of_an_answer_ends_with_it(rest, most, verdict, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", FAMILY.format(rest=rest, most=most)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert verdict in done.stdout, done.stderr
    assert done.stdout.strip().endswith("[]")
    assert not left_running(tmp_path)


@pytest.mark.whole
@pytest.mark.parametrize("stem", ["02_legacy_functorch", "08_private_training"])
def test_large_class_gets_its_marks(stem, tmp_path):
    path = next(each for each in LESSONS if each.stem == stem)
    given = {name: f"def {{name}}(*args):\n    {line}" for name, line in LINES.items()} | CELLS
    marks = hand_in(path, tmp_path / "class", given)
    (tmp_path / "notebooks").symlink_to(ROOT / "notebooks")
    done = start(tmp_path, stem, tmp_path / "class", "--hidden", HIDDEN)
    _, problems = done.communicate(timeout=900)
    assert done.returncode == 0, problems
    assert not complaints(grades(tmp_path), marks)
    assert not left_running(tmp_path)
    assert not list(path.parent.glob(f"{path.name}.*"))  # what they wrote beside it


@pytest.mark.whole
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_known_answers_get_their_verdicts(path, tmp_path, monkeypatch):
    """Each answer in tests/exercises is judged as in the lesson; hidden tests take right ones."""
    # As where torch.compile was used before: torch would make that folder anew.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    notebook = quick(files.read(path), path.stem)
    known = answers.answers(notebook, answers.read(ROOT / "tests/exercises" / f"{path.stem}.py"))
    asked = {each.solution.id: each for each in submissions.exercises(notebook)}
    exists = (HIDDEN / f"{path.stem}.py").exists()
    hidden = hidden_tests.read(HIDDEN if exists else None, path, [*asked.values()])
    session = Session(path.parent, [])
    wrong = []
    try:
        for each in files.code_cells(notebook):
            if each.id in asked:
                exercise = asked[each.id]
                test = hidden.get(exercise.number, hidden_tests.Test()).source
                mine = {a.name: a for a in known if a.name.startswith(f"{each.id} answer")}
                sources = {name: answer.source for name, answer in mine.items()}
                for name, outcome in session.judge(exercise, sources, test, 120):
                    said = outcome["verdict"], outcome.get("hidden", "")
                    refused = said[0] == "correct" and not reports.mark(outcome)
                    if refused or not said[0].startswith(mine[name].verdict):
                        wrong.append((name, mine[name].verdict, said))
            session.run(each.id, each.source)
    finally:
        session.close()
    assert not wrong
