"""Verdicts that no answer to a lesson gets: those in tests/exercises/ try the others."""

import signal
import sys
import time
from contextlib import suppress
from functools import partial

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from helpers import exercises
from helpers.exercises import verdicts

RIGHT = torch.arange(6.0).view(2, 3)
VERDICTS = {
    "correct": (RIGHT.clone(), RIGHT, "correct"),
    "NaN": (RIGHT * torch.nan, RIGHT, "right shape, wrong values: it: holds NaN"),
    "truth values": (RIGHT > 2, RIGHT, "wrong dtype: it: expected torch.float32, got torch.bool"),
    "no tensor": (None, RIGHT, "wrong type: it: expected a tensor, got NoneType"),
    "missing": ({}, {"w": RIGHT}, "missing: it: w"),
    "shape first": ((RIGHT + 1, RIGHT[0]), (RIGHT, RIGHT), "wrong shape: it[1]: expected (2, 3)"),
    "number": (0.25, 0.5, "right shape, wrong values: it: off by"),
}


@pytest.mark.parametrize(("got", "expected", "verdict"), VERDICTS.values(), ids=VERDICTS)
def test_verdict(got, expected, verdict, capsys):
    with exercises.check("Exercise 1", print):
        exercises.expect("it", got, expected)
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"Exercise 1: {verdict}")


def read(row):
    return row.item()


def test_error_of_torch_shows_only_lines_of_the_lesson(capsys):
    with exercises.check("Exercise 1", print):
        torch.func.vmap(read)(RIGHT[0])
    *steps, verdict = capsys.readouterr().out.splitlines()
    assert [step.split(", in ")[1] for step in steps] == [
        "the check: torch.func.vmap(read)(RIGHT[0])",
        "read: return row.item()",
    ]
    assert verdict.startswith("Exercise 1: your answer raised RuntimeError: vmap:")


def test_error_without_kernel_is_not_still_to_do(capsys):
    with exercises.check("Exercise 1", print):
        raise NotImplementedError("no kernel\nfor this device")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Exercise 1: your answer raised NotImplementedError: no kernel"


def leave(*_):
    raise SystemExit(3)


def loop(*_):
    while True:
        with suppress(Exception):
            time.sleep(10)


ENDS = {
    "leaves": (leave, "your answer raised SystemExit: 3"),
    "loops": (loop, "not so yet: it ends within 0.1 s"),
}


@pytest.mark.parametrize(("answer", "verdict"), ENDS.values(), ids=ENDS)
def test_answer_that_does_not_return_gets_a_verdict(answer, verdict, capsys, monkeypatch):
    monkeypatch.setattr(verdicts, "SECONDS", 0.1)
    with exercises.check("Exercise 1", answer) as found:
        found(RIGHT)
    assert capsys.readouterr().out.splitlines()[-1] == f"Exercise 1: {verdict}"
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


CELLS = {
    "new": ["def twice(x): return 2 * x"],
    "older": ["def twice(x): return 2 * x", "def twice(x) return 3 * x"],
    "mended": ["def twice(x) return 3 * x", "def twice(x): return 2 * x"],
    "same again": ["def twice(x): return 2 * x"] * 2,
}
AGAIN = """\
from helpers import exercises
with exercises.check("Exercise 1", twice) as answer:
    exercises.require("it doubles", answer(1) == 2)"""


@pytest.mark.parametrize("cells", CELLS.values(), ids=CELLS)
def test_definition_older_than_its_cell_is_refused(cells, capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a shell replaces it
    shell = InteractiveShell(ipython_dir=str(tmp_path))
    for each in (*cells, AGAIN):
        shell.run_cell(each, store_history=True)
    last = capsys.readouterr().out.splitlines()[-1]
    older = cells == CELLS["older"]
    assert last.startswith(f"Exercise 1: {'not so yet: its cell is newer' if older else 'correct'}")


def interrupted(tensor):
    with exercises.check("Exercise 1", print, it=tensor):
        tensor.zero_()
        raise KeyboardInterrupt


def test_interrupt_ends_the_check(capsys):
    tensor = RIGHT.clone()
    with pytest.raises(KeyboardInterrupt):
        interrupted(tensor)
    assert torch.equal(tensor, RIGHT)
    assert not capsys.readouterr().out


IN_PLACE = {
    "convert": (lambda given: given["model"].double(), "model['weight'], model['bias']"),
    "remove": (lambda given: given["grads"].pop("w"), "grads"),
    "require a gradient": (lambda given: given["images"].requires_grad_(), "images"),
    "shrink": (lambda given: setattr(given["images"], "data", torch.ones(1, 3)), "images"),
    "zero all": (lambda given: [w.zero_() for w in given["weights"]], "weights[0], weights[1]"),
    "freeze": (lambda given: given["model"].weight.requires_grad_(False), "model['weight']"),
}


def everything(given):
    """List all that could change in place, for a comparison."""
    tensors = [given["images"], *given["grads"].values(), *given["model"].parameters()]
    tensors += given["weights"]
    return [(t.dtype, t.requires_grad, t.tolist()) for t in tensors]


@pytest.mark.parametrize(("change", "names"), IN_PLACE.values(), ids=IN_PLACE.keys())
def test_what_is_given_is_put_back(change, names, capsys):
    given = {
        "images": torch.rand(2, 3),
        "grads": {"w": torch.rand(2, 3)},
        "model": torch.nn.Linear(3, 1),
        "weights": (torch.rand(2), torch.rand(3)),
    }
    before = everything(given)
    with exercises.check("Exercise 1", print, **given):
        change(given)
        exercises.expect("it", RIGHT, RIGHT + 1)  # the cause is said first
    assert everything(given) == before
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"Exercise 1: not so yet: it changed {names} in place, which is put back"
    )


def test_what_is_given_and_left_alone_is_no_matter(capsys):
    part = {"holds NaN": torch.full((2,), torch.nan), "one number": torch.tensor(1), "text": "it"}
    with exercises.check("Exercise 1", print, parts=[part], models=(torch.nn.Linear(3, 1),)):
        _ = part["one number"] + 1
    assert capsys.readouterr().out == "Exercise 1: correct\n"


globals()["LENGTH"] = 3  # as if another cell had assigned it
ONE, THREE = 1, 6 // 2


def own_length(row):
    return len(row)


def length_of_the_lesson(row):
    return LENGTH  # noqa: F821


def length_written_out(row):
    return THREE


COPIED = LENGTH  # noqa: F821


def length_copied(row):
    return COPIED


def wrapped(function):
    return lambda row: function(row)


class Lengths(dict):
    def __init__(self, row):
        super().__init__(own=len(row))

    def get(self, key):
        return self[key] * LENGTH  # noqa: F821


ALONE = {
    "its arguments": (own_length, (), "correct"),
    "data of the lesson": (length_of_the_lesson, (), "not so yet: it uses 'LENGTH' of the lesson"),
    "data that the task names": (length_of_the_lesson, ("LENGTH",), "correct"),
    "functions of the lesson": (lambda row: own_length(row), (), "correct"),
    "numbers of its own cell": (length_written_out, (), "correct"),
    "copied into its own cell": (length_copied, (), "not so yet: it uses 'COPIED' of the lesson"),
    "made by vmap": (torch.vmap(lambda each: each * 0 + THREE), (), "wrong shape"),
    "in a wrapper": (wrapped(length_of_the_lesson), (), "not so yet: it uses 'LENGTH'"),
    "in a partial": (partial(length_of_the_lesson), (), "not so yet: it uses 'LENGTH'"),
}


@pytest.mark.parametrize(("answer", "sees", "verdict"), ALONE.values(), ids=ALONE)
def test_an_answer_finds_its_arguments_alone(answer, sees, verdict, capsys):
    with exercises.check("Exercise 1", answer, sees=sees) as alone:
        exercises.expect("length", alone(RIGHT[0]), 3)
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"Exercise 1: {verdict}")


def test_methods_find_no_data_of_the_lesson(capsys):
    with exercises.check("Exercise 1", Lengths) as alone:
        alone(RIGHT[0]).get("own")
    assert "'LENGTH'" in capsys.readouterr().out
