"""The verdicts on answers to exercises."""

import pytest
import torch

from helpers import exercises

RIGHT = torch.arange(6.0).view(2, 3)
VERDICTS = {
    "correct": (RIGHT.clone(), RIGHT, "Exercise 1: correct"),
    "shape": (RIGHT[0], RIGHT, "Exercise 1: wrong shape: it: expected (2, 3), got (3,)"),
    "values": (RIGHT + 1, RIGHT, "Exercise 1: right shape, wrong values: it: off by 2.0e-01 of"),
    "NaN": (RIGHT * torch.nan, RIGHT, "Exercise 1: right shape, wrong values: it: off by inf"),
    "no tensor": (None, RIGHT, "Exercise 1: wrong type: it: expected a tensor, got NoneType"),
    "no dictionary": (RIGHT, {"w": RIGHT}, "Exercise 1: wrong type: it: expected a dict, got"),
    "missing": ({}, {"w": RIGHT}, "Exercise 1: missing: it: w"),
    "too many": ({"w": RIGHT, "b": RIGHT}, {"w": RIGHT}, "Exercise 1: not expected: it: b"),
    "inside": ({"w": RIGHT[0]}, {"w": RIGHT}, "Exercise 1: wrong shape: it['w']: expected (2, 3)"),
    "shape first": (
        (RIGHT + 1, RIGHT[0]),
        (RIGHT, RIGHT),
        "Exercise 1: wrong shape: it[1]: expected (2, 3), got (3,)",
    ),
    "number": (0.25, 0.5, "Exercise 1: right shape, wrong values: it: off by"),
}


@pytest.mark.parametrize(("got", "expected", "verdict"), VERDICTS.values(), ids=VERDICTS.keys())
def test_verdict(got, expected, verdict, capsys):
    with exercises.check("Exercise 1"):
        exercises.expect("it", got, expected)
    assert capsys.readouterr().out.splitlines()[-1].startswith(verdict)


def test_demands(capsys):
    with exercises.check("Exercise 2"):
        exercises.expect_shape("it", RIGHT, (2, 3))
        exercises.require("it is small", True)
        exercises.require("it is detached", False)
        raise AssertionError("a demand that is not met ends the check")
    with exercises.check("Exercise 3"):
        exercises.expect_shape("it", RIGHT, (3, 2))
    assert capsys.readouterr().out.splitlines() == [
        "it is small: yes",
        "Exercise 2: not so yet: it is detached",
        "Exercise 3: wrong shape: it: expected (3, 2), got (2, 3)",
    ]


def test_errors_of_the_answer_are_raised():
    with pytest.raises(NotImplementedError, match="no kernel"), exercises.check("Exercise 1"):
        raise NotImplementedError("no kernel for this device")
    with pytest.raises(ZeroDivisionError), exercises.check("Exercise 1"):
        _ = 1 / 0
