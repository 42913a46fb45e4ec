"""Grading a class: right marks whatever is handed in, and nothing of it left running."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import psutil
import pytest

from helpers.tooling import student
from helpers.tooling.grading import submissions
from helpers.tooling.lesson import copies, files
from tests.tooling.samples import LESSONS, ROOT, cell

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
}
"""Such answers as whole cells."""


def edition(lesson, **answers):
    """Make a student's notebook with the solution as answer to all but `e1=`, `e2=`, ..."""
    notebook = student.student(lesson)
    for each in submissions.exercises(files.read(lesson)):
        answer = answers.get(f"e{each.number}", each.solution.source)
        target = cell(notebook, each.solution.id)
        target.source = (
            answer.format(name=each.name, n=each.number, lesson=lesson.resolve())
            if f"e{each.number}" in answers
            else answer
        )
    return notebook


def cut(notebook, identity):
    del notebook.cells[[each.id for each in notebook.cells].index(identity) :]
    return notebook


def edited(notebook, identity, source):
    cell(notebook, identity).source = source
    return notebook


def handed_in(lesson, folder):
    """Hand in a class; return the marks that each file must get, None for what is not gradable."""
    folder.mkdir()
    marks = {}

    def hand_in(name, notebook, mark):
        notebook.cells[0].source += name
        path = folder / (name if "/" in name else f"{name}.ipynb")
        path.parent.mkdir(exist_ok=True)
        nbformat.write(notebook, path)
        marks[name.split("/")[0] if "/" in name else f"{name}.ipynb"] = mark

    def marked(text):  # an answer of its own, so that it is judged by itself
        return text + f"\n# {len(marks)}"

    whole = len(submissions.exercises(files.read(lesson)))
    for name, line in LINES.items():
        number = len(marks) % whole + 1
        source = marked(f"def {{name}}(*args):\n    {line}")
        hand_in(name, edition(lesson, **{f"e{number}": source}), whole - 1)
    for name, source in CELLS.items():
        number = len(marks) % whole + 1
        hand_in(name, edition(lesson, **{f"e{number}": marked(source)}), whole - 1)
    hand_in("right", edition(lesson), whole)
    hand_in("nothing done", student.student(lesson), 0)
    hand_in("half", cut(edition(lesson), "solution-3"), 2)
    hand_in(f"folder/{lesson.name}", edition(lesson), whole)
    deleted = edition(lesson)
    deleted.cells = [each for each in deleted.cells if not each.id.startswith("check-")]
    hand_in("checks deleted", deleted, whole)
    fooled = edited(edition(lesson, e1="def {name}(*args): pass"), "check-1", "print('correct')")
    hand_in("check edited", fooled, whole - 1)
    (folder / "broken.ipynb").write_text(json.dumps(edition(lesson))[:5000])
    (folder / "binary.ipynb").write_bytes(bytes(range(256)))
    (folder / "list.ipynb").write_text("[]")
    (folder / "empty").mkdir()
    (folder / "essay.docx").write_text("Dear teacher")
    other = next(each for each in LESSONS if each != lesson)
    nbformat.write(edition(other), folder / "other.ipynb")
    files_ = ("broken.ipynb", "binary.ipynb", "list.ipynb", "empty", "essay.docx", "other.ipynb")
    return marks | dict.fromkeys(files_)


def run(folder, lesson, *options, cwd=ROOT):
    command = [sys.executable, "-m", "helpers.tooling.grade", lesson.stem, str(folder), *options]
    return subprocess.Popen(
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"GRADES": str(folder)},
    )
