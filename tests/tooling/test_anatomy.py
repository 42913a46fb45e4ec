"""The checks of a lesson as a file, on the lessons and on deliberately damaged ones."""

import pytest
from helpers.tooling.checks import anatomy
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from tests.tooling.samples import LESSONS, cell, code, good_lesson, save


def test_there_are_lessons():
    assert len(LESSONS) >= 4


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_is_sound(path):
    assert anatomy.findings(path) == []


@pytest.mark.usefixtures("desk")
def test_good_lesson_is_sound():
    assert anatomy.findings(save(good_lesson(), "01_good")) == []


def never_executed(notebook):
    for each in notebook.cells:
        if each.cell_type == "code":
            each.execution_count = None


def one_not_executed(notebook):
    cell(notebook, "verdict").execution_count = None


def out_of_order(notebook):
    cell(notebook, "verdict").execution_count = 9


def tag(identity, *tags):
    return lambda notebook: cell(notebook, identity).metadata.update(tags=list(tags))


def prints(identity, text, name="stdout"):
    output = new_output("stream", name=name, text=text)
    return lambda notebook: cell(notebook, identity).outputs.append(output)


def shows(identity, **data):
    output = new_output("display_data", {key.replace("_", "/"): data[key] for key in data})
    return lambda notebook: cell(notebook, identity).outputs.append(output)


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


def another_first(notebook):
    notebook.cells.insert(1, code("early", "1 + 1"))


def no_second_cell(notebook):
    del notebook.cells[2:]


def no_code(notebook):
    del notebook.cells[1:]


def no_title(notebook):
    del notebook.cells[0]


def parameters_in_markdown(notebook):
    notebook.cells.append(new_markdown_cell("x", id="more", metadata={"tags": ["parameters"]}))


def only_text(notebook):
    no_code(notebook)
    parameters_in_markdown(notebook)


def no_kernelspec(notebook):
    del notebook.metadata["kernelspec"]


def without_id(notebook):
    cell(notebook, "shape").id = new_code_cell().id


def three_exercises(notebook):
    del notebook.cells[-3:]


def task_missing(notebook):
    notebook.cells.remove(cell(notebook, "exercise-2"))


def is_large(notebook):
    notebook.cells.append(new_markdown_cell("word " * 400_000, id="long"))


DAMAGE = {
    "never executed": (never_executed, "01_bad.ipynb: it was never executed"),
    "a cell not executed": (one_not_executed, "cell 5 (verdict): it was never executed"),
    "out of order": (out_of_order, "cell 5 (verdict): it was executed as number 9, out of order"),
    "mistyped tag": (
        tag("time", "nbval-ingore-output"),
        "cell 6 (time): there is no tag 'nbval-ingore-output': perhaps 'nbval-ignore-output'",
    ),
    "tag for raising": (tag("shape", "raises-exception"), "there is no tag 'raises-exception'"),
    "error output": (ends_in_error, "cell 5 (verdict): it ended in ValueError"),
    "no code": (no_code, "01_bad.ipynb: no cell is tagged 'parameters'"),
    "no parameters": (tag("sizes"), "01_bad.ipynb: no cell is tagged 'parameters'"),
    "parameters twice": (tag("verdict", "parameters"), "(verdict): a second cell is tagged"),
    "parameters in text": (parameters_in_markdown, "(more): a second cell is tagged"),
    "parameters only in text": (only_text, "(more): the parameters cell is not the first code"),
    "parameters late": (another_first, "cell 3 (sizes): the parameters cell is not the first"),
    "name missing": (replaces("sizes", "seed", "seeds"), "(sizes): the parameters cell lacks seed"),
    "no annotation": (replaces("sizes", ": int = 64", " = 64"), "'batch_size = 64  # B, the numb"),
    "no comment": (
        replaces("sizes", "  # B, the number of samples", ""),
        "line 'batch_size: int = 64' has not the form",
    ),
    "no Python": (replaces("sizes", "  # B,", ""), "(sizes): the parameters cell is not Python"),
    "comment elsewhere": (replaces("sizes", "  # of every", "\n# of"), "line 'seed: int = 0' has"),
    "more than values": (replaces("sizes", "device:", "import torch\ndevice:"), "'import torch'"),
    "wrong default": (replaces("sizes", "= 64", '= "64"'), "'batch_size' must be a whole number"),
    "set-up differs": (
        replaces("set-up", "make_repeatable(seed)", "make_repeatable(0)"),
        "cell 3 (set-up): the set-up cell is not the one that lessons share, "
        "see `devices.make_repeatable(0)`",
    ),
    "set-up longer": (replaces("set-up", "(seed)", "(seed)\n1"), "see `its length`"),
    "no set-up": (no_second_cell, "01_bad.ipynb: there is no second code cell"),
    "no title": (no_title, "cell 1 (sizes): a lesson begins with its title"),
    "papermill's block": (
        lambda notebook: notebook.metadata.update(papermill={}),
        "01_bad.ipynb: its metadata 'papermill' does not belong there",
    ),
    "timings of cells": (
        lambda notebook: cell(notebook, "shape").metadata.update(execution={}),
        "cell 4 (shape): its metadata 'execution' does not belong there",
    ),
    "no kernelspec": (no_kernelspec, "01_bad.ipynb: its metadata 'kernelspec' is not"),
    "random id": (without_id, "its id is missing, a duplicate or random"),
    "a device": (prints("shape", "cuda:0\n"), "cell 4 (shape): its output is compared, and holds"),
    "a device in text": (shows("shape", text_plain="device(type='cpu')"), "holds a device: 'cpu'"),
    "a device in HTML": (shows("shape", text_html="<td>cuda</td>"), "holds a device: 'cuda'"),
    "an address": (prints("shape", "<f at 0x7f3a90>"), "holds an address: '0x7f3a90'"),
    "a path": (prints("shape", "in /home/ada/x.py\n"), "holds a path: '/home/ada/x.py'"),
    "a Windows path": (prints("shape", r"in C:\ada"), "holds a path"),
    "a temporary file": (prints("shape", "ipykernel_123"), "holds a process or a temporary file"),
    "a time": (prints("shape", "took 3.21 ms\n"), "holds a time: '3.21 ms'"),
    "a time in seconds": (prints("shape", "2 s per step"), "holds a time: '2 s'"),
    "tqdm's bar": (prints("shape", " 40%|####      | 2/5"), "holds a progress bar"),
    "stderr": (prints("shape", "UserWarning", "stderr"), "cell 4 (shape): its output holds stderr"),
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
    "unknown level": (replaces("exercise-2", "standard", "easy"), "(exercise-2): its task does"),
    "no minutes": (replaces("exercise-2", ", 5 minutes", ""), "(exercise-2): its task does not"),
    "wrong number": (replaces("exercise-2", "Exercise 2", "Exercise 3"), "begin `**Exercise 2**"),
    "one hint": (
        replaces("exercise-2", "<summary>Hint 2</summary>", "<summary>Answer</summary>"),
        "(exercise-2): Exercise 2 has not two hints",
    ),
    "text after the hints": (
        replaces("exercise-2", "`2 * x`.\n\n</details>", "`2 * x`.\n\n</details>\n\nAnd more."),
        "(exercise-2): Exercise 2 has not two hints",
    ),
    "three hints": (
        replaces("exercise-2", "**Exercise", "<details><summary>Hint 0</summary>\n\n**Exercise"),
        "(exercise-2): ",
    ),
    "no task": (task_missing, "(answer-2): no task stands before it"),
    "three exercises": (three_exercises, "01_bad.ipynb: it has 3 exercises: 4 are the fewest"),
    "no warm-up": (
        replaces("exercise-1", "warm-up", "standard"),
        "01_bad.ipynb: its first exercise is not a warm-up",
    ),
    "no real problem": (
        replaces("exercise-4", "real problem", "challenge"),
        "01_bad.ipynb: its last exercise is not a real problem",
    ),
    "figure without words": (
        shows("shape", image_png="AAAA"),
        "cell 4 (shape): its figure has no alternative text",
    ),
    "words without figure": (
        lambda notebook: cell(notebook, "shape").metadata.update(alt="A digit."),
        "cell 4 (shape): it has an alternative text and no figure",
    ),
    "large": (is_large, "01_bad.ipynb: it has 2,00"),
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
