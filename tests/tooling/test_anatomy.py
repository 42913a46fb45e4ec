"""The checks of a lesson as a file, on the lessons and on deliberately damaged ones."""

import pytest
from nbformat.v4 import new_code_cell, new_output

from helpers.tooling.lesson import form
from tests.support import anatomy
from tests.tooling.samples import DOOR, LESSONS, cell, good_lesson, save


@pytest.mark.parametrize("path", [DOOR, *LESSONS], ids=lambda path: path.stem)
def test_lesson_is_sound(path):
    assert anatomy.findings(path) == []


@pytest.mark.usefixtures("desk")
def test_good_lesson_is_sound():
    assert anatomy.findings(save(good_lesson(), "01_good")) == []


def update(identity, **values):
    return lambda notebook: cell(notebook, identity).update(values)


def marked(identity, **metadata):
    return lambda notebook: cell(notebook, identity).metadata.update(metadata)


def prints(text, name="stdout"):
    output = new_output("stream", name=name, text=text)
    return lambda notebook: cell(notebook, "shape").outputs.append(output)


def shows(**data):
    output = new_output("display_data", {key.replace("_", "/"): data[key] for key in data})
    return lambda notebook: cell(notebook, "shape").outputs.append(output)


def wide(notebook):
    shows(image_png="AA")(notebook)
    cell(notebook, "shape").outputs[-1].metadata["image/png"] = {"width": 563, "height": 9}


def redrawn(notebook):
    marked("shape", alt="A digit.")(notebook)
    shows(image_png="AA")(notebook)
    form.accept_figures(notebook)
    cell(notebook, "shape").outputs[-1].data["image/png"] = "AB"


def replaces(identity, old, new):
    def damage(notebook):
        damaged = cell(notebook, identity)
        assert old in damaged.source
        damaged.source = damaged.source.replace(old, new)

    return damage


def shared(notebook):
    replaces("check-1", "\nwith ", "\ntwice = 2\nwith ")(notebook)
    replaces("check-2", "\nwith ", "\nassert [twice for _ in '1']\nwith ")(notebook)


ERROR = new_output("error", ename="E", evalue="no", traceback=[])
DEVICE, TASK = "holds a device: ", "(answer-2): no task before it: **Exercise 2** "
DAMAGE = {
    "not executed": (update("verdict", execution_count=None), "cell 5 (verdict): its count"),
    "stale timing": (update("time", source="import timeit"), "cell 6 (time): its count"),
    "papermill's block": (lambda notebook: notebook.metadata.update(papermill={}), "metadata or"),
    "old format": (lambda notebook: notebook.update(nbformat_minor=4), "its metadata or format"),
    "mistyped tag": (
        marked("time", tags=["nbval-ingore-output"]),
        "cell 6 (time): there is no tag 'nbval-ingore-output'",
    ),
    "no parameters": (marked("sizes", tags=[]), "(sizes): the first code cell, and no other"),
    "name missing": (replaces("sizes", "seed", "seeds"), "(sizes): the parameters cell lacks seed"),
    "no annotation": (replaces("sizes", ": int = 64", " = 64"), "'batch_size = 64  # B, the numb"),
    "wrong default": (replaces("sizes", "= 64", '= "64"'), 'line \'batch_size: int = "64"  # B'),
    "set-up differs": (replaces("set-up", "(seed)", "(0)"), "(set-up): the second code cell is"),
    "empty cell": (update("exercise-2", source="\n"), "(exercise-2): it is empty"),
    "saved error": (update("time", outputs=[ERROR]), "(time): its saved output is an error"),
    "random id": (update("shape", id=new_code_cell().id), "its id is random"),
    "a device": (prints("cuda:0\n"), f"cell 4 (shape): its output is compared, and {DEVICE}"),
    "a device in HTML": (shows(text_html="<td>cuda</td>"), f"{DEVICE}'cuda'"),
    "an address": (prints("<f at 0x7f3a90>"), "holds an address: '0x7f3a90'"),
    "a path": (prints("in /home/ada/x.py\n"), "holds a path: '/home/ada/x.py'"),
    "a Windows path": (prints(r"in C:\ada"), "holds a path"),
    "a temporary file": (prints("ipykernel_123"), "holds a process or a temporary file"),
    "a time": (prints("took 3.21 ms\n"), "holds a time: '3.21 ms'"),
    "tqdm's bar": (prints(" 40%|####      | 2/5"), "holds a progress bar"),
    "stderr": (prints("UserWarning", "stderr"), "cell 4 (shape): its output holds stderr"),
    "solution without docstring": (
        replaces("answer-1", '"""Return x, (B,), doubled."""', "pass"),
        "(answer-1): no stub can be made of it: `answer` has no docstring",
    ),
    "two solutions": (update("answer-1", source="x = 1\ny = 2"), "a solution is one function or"),
    "solution without check": (update("check-1", source="1"), "cell 8 (answer-1): no check tagged"),
    "check not tagged": (marked("check-1", tags=[]), "cell 8 (answer-1): no check tagged"),
    "checks that share a name": (shared, "(check-2): it takes twice from the cell check-1"),
    "exercises not explained": (replaces("exercise-1", "folded ", ""), "does not explain"),
    "no level": (replaces("exercise-2", "(standard, ", "("), TASK),
    "wrong number": (replaces("exercise-2", "Exercise 2", "Exercise 3"), TASK),
    "one hint": (replaces("exercise-2", "Hint 2", "Answer"), TASK),
    "text after the hints": (replaces("exercise-2", "`2 * x`.\n\n</", "</details>More</"), TASK),
    "no task": (lambda notebook: notebook.cells.remove(cell(notebook, "exercise-2")), TASK),
    "three exercises": (lambda notebook: notebook.cells.__delitem__(slice(-3, None)), "not four"),
    "no warm-up": (replaces("exercise-1", "warm-up", "standard"), "from warm-up to real problem"),
    "figure without words": (shows(image_png="AA"), "(shape): a figure has an alternative text"),
    "figure redrawn": (redrawn, "(shape): its figure is another one: look at it, mend"),
    "wide figure": (wide, "its figure is wider than 562 pixels"),
    "words without figure": (marked("shape", alt="A digit."), "a figure has an alternative text"),
    "large": (update("exercise-2", source="word " * 400_000), "more than 1,500,000"),
}


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(("damage", "expected"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_found(damage, expected):
    notebook = good_lesson()
    damage(notebook)
    found = anatomy.findings(save(notebook, "01_bad"))
    assert any(expected in sentence for sentence in found), found
    assert all(sentence.startswith("01_bad.ipynb") for sentence in found)
