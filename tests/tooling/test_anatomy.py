"""The checks of a lesson as a file, on the lessons and on deliberately damaged ones."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from tests.support import anatomy
from tests.tooling.samples import LESSONS, cell, code, good_lesson, save


def test_there_are_lessons():
    assert len(LESSONS) >= 4


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_is_sound(path):
    assert anatomy.findings(path) == []


@pytest.mark.usefixtures("desk")
def test_good_lesson_is_sound():
    assert anatomy.findings(save(good_lesson(), "01_good")) == []


def counts(identity, count):
    return lambda notebook: cell(notebook, identity).update(execution_count=count)


def never_executed(notebook):
    for each in notebook.cells:
        if each.cell_type == "code":
            each.execution_count = None


def tag(identity, *tags):
    return lambda notebook: cell(notebook, identity).metadata.update(tags=list(tags))


def marked(**metadata):
    return lambda notebook: cell(notebook, "shape").metadata.update(metadata)


def prints(text, name="stdout"):
    output = new_output("stream", name=name, text=text)
    return lambda notebook: cell(notebook, "shape").outputs.append(output)


def shows(**data):
    output = new_output("display_data", {key.replace("_", "/"): data[key] for key in data})
    return lambda notebook: cell(notebook, "shape").outputs.append(output)


def ends_in_error(notebook):
    cell(notebook, "verdict").outputs = [new_output("error", ename="ValueError", evalue="no")]


def reads(identity, source):
    return lambda notebook: cell(notebook, identity).update(source=source)


def replaces(identity, old, new):
    def damage(notebook):
        damaged = cell(notebook, identity)
        assert old in damaged.source
        damaged.source = damaged.source.replace(old, new)

    return damage


def adds(place, new):
    return lambda notebook: notebook.cells.insert(place, new)


def without(first, last=None):
    def damage(notebook):
        del notebook.cells[first:last]

    return damage


def task_missing(notebook):
    notebook.cells.remove(cell(notebook, "exercise-2"))


TAGGED = new_markdown_cell("x", id="more", metadata={"tags": ["parameters"]})
NO_PARAMETERS = "01_bad.ipynb: the first code cell, and no other, is tagged 'parameters'"
DAMAGE = {
    "never executed": (never_executed, "01_bad.ipynb: it was never executed"),
    "a cell not executed": (counts("verdict", None), "cell 5 (verdict): it was never executed"),
    "out of order": (counts("verdict", 9), "(verdict): it was executed as number 9, out of order"),
    "mistyped tag": (
        tag("time", "nbval-ingore-output"),
        "cell 6 (time): there is no tag 'nbval-ingore-output': perhaps 'nbval-ignore-output'",
    ),
    "tag for raising": (tag("shape", "raises-exception"), "there is no tag 'raises-exception'"),
    "error output": (ends_in_error, "cell 5 (verdict): it ended in ValueError"),
    "no code": (without(1), NO_PARAMETERS),
    "no parameters": (tag("sizes"), NO_PARAMETERS),
    "parameters twice": (tag("verdict", "parameters"), NO_PARAMETERS),
    "parameters in text": (adds(1, TAGGED), NO_PARAMETERS),
    "parameters late": (adds(1, code("early", "1 + 1")), NO_PARAMETERS),
    "name missing": (replaces("sizes", "seed", "seeds"), "(sizes): the parameters cell lacks seed"),
    "no annotation": (replaces("sizes", ": int = 64", " = 64"), "'batch_size = 64  # B, the numb"),
    "no comment": (
        replaces("sizes", "  # B, the number of samples", ""),
        "line 'batch_size: int = 64' has not the form",
    ),
    "two signs": (replaces("sizes", "  # B", "  # B = 1"), "line 'batch_size: int = 64  # B = 1"),
    "more than values": (replaces("sizes", "device:", "import torch\ndevice:"), "'import torch'"),
    "wrong default": (replaces("sizes", "= 64", '= "64"'), 'line \'batch_size: int = "64"  # B'),
    "set-up differs": (replaces("set-up", "(seed)", "(0)"), "(set-up): the second code cell is"),
    "no set-up": (without(2), "01_bad.ipynb: the second code cell is not the set-up cell"),
    "no title": (without(0, 1), "cell 1 (sizes): a lesson begins with its title"),
    "papermill's block": (
        lambda notebook: notebook.metadata.update(papermill={}),
        "01_bad.ipynb: its metadata is not {'kernelspec': ",
    ),
    "timings of cells": (marked(execution={}), "(shape): its metadata 'execution' does not belong"),
    "random id": (
        lambda notebook: cell(notebook, "shape").update(id=new_code_cell().id),
        "its id is missing, a duplicate or random",
    ),
    "a device": (prints("cuda:0\n"), "cell 4 (shape): its output is compared, and holds a device"),
    "a device in text": (shows(text_plain="device(type='cpu')"), "holds a device: 'cpu'"),
    "a device in HTML": (shows(text_html="<td>cuda</td>"), "holds a device: 'cuda'"),
    "an address": (prints("<f at 0x7f3a90>"), "holds an address: '0x7f3a90'"),
    "a path": (prints("in /home/ada/x.py\n"), "holds a path: '/home/ada/x.py'"),
    "a Windows path": (prints(r"in C:\ada"), "holds a path"),
    "a temporary file": (prints("ipykernel_123"), "holds a process or a temporary file"),
    "a time": (prints("took 3.21 ms\n"), "holds a time: '3.21 ms'"),
    "a time in seconds": (prints("2 s per step"), "holds a time: '2 s'"),
    "tqdm's bar": (prints(" 40%|####      | 2/5"), "holds a progress bar"),
    "stderr": (prints("UserWarning", "stderr"), "cell 4 (shape): its output holds stderr"),
    "hidden output": (reads("shape", "print(1);"), "cell 4 (shape): it ends in `;`"),
    "clear_output": (reads("shape", "clear_output()"), "cell 4 (shape): `clear_output`"),
    "empty cell": (reads("shape", "\n"), "cell 4 (shape): it is empty"),
    "stale timing": (reads("time", "import timeit"), "cell 6 (time): its output is of an earlier"),
    "no shape": (
        tag("shape", "nbval-ignore-output"),
        "01_bad.ipynb: no compared output shows the shape",
    ),
    "solution without docstring": (
        reads("answer", "def answer(x):\n    return 2 * x"),
        "cell 8 (answer): no stub can be made of it: `answer` has no docstring",
    ),
    "solution of two things": (reads("answer", "x = 1\ny = 2"), "a solution is one function or"),
    "solution without check": (reads("check", "1"), "cell 8 (answer): no check follows it"),
    "check not tagged": (tag("check"), "cell 9 (check): its verdict is the same everywhere"),
    "exercises not explained": (reads("exercise-1", "Solve"), "does not explain exercises as"),
    "no level": (
        replaces("exercise-2", "(standard, ", "("),
        "(exercise-2): its task does not begin `**Exercise 2** (level, N minutes). `",
    ),
    "no minutes": (replaces("exercise-2", ", 5 minutes", ""), "(exercise-2): its task does not"),
    "wrong number": (replaces("exercise-2", "Exercise 2", "Exercise 3"), "begin `**Exercise 2**"),
    "one hint": (replaces("exercise-2", "Hint 2", "Answer"), "Exercise 2 has not two hints"),
    "text after the hints": (
        replaces("exercise-2", "`2 * x`.\n\n</details>", "`2 * x`.\n\n</details>\n\nAnd more."),
        "(exercise-2): Exercise 2 has not two hints",
    ),
    "no task": (task_missing, "(answer-2): no task stands before it"),
    "three exercises": (without(-3), "01_bad.ipynb: it has 3 exercises: 4 are the fewest"),
    "no warm-up": (
        replaces("exercise-1", "warm-up", "standard"),
        "01_bad.ipynb: its first exercise is not a warm-up",
    ),
    "no real problem": (
        replaces("exercise-4", "real problem", "challenge"),
        "01_bad.ipynb: its last exercise is not a real problem",
    ),
    "figure without words": (shows(image_png="AA"), "(shape): its figure has no alternative text"),
    "words without figure": (marked(alt="A digit."), "has an alternative text and no figure"),
    "large": (
        adds(9, new_markdown_cell("word " * 400_000, id="long")),
        "01_bad.ipynb: it has 2,00",
    ),
    "old format": (lambda notebook: notebook.update(nbformat_minor=4), "01_bad.ipynb is not a not"),
}


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(("damage", "expected"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_found(damage, expected):
    notebook = good_lesson()
    damage(notebook)
    found = anatomy.findings(save(notebook, "01_bad"))
    assert any(expected in sentence for sentence in found), found
    assert all(sentence.startswith("01_bad.ipynb") for sentence in found)


@pytest.mark.usefixtures("desk")
def test_file_that_is_no_notebook():
    path = save(good_lesson(), "01_bad")
    path.write_text(path.read_text()[:-20])
    (found,) = anatomy.findings(path)
    assert found.startswith("01_bad.ipynb is not a notebook in nbformat 4.5: ")
