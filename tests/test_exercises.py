"""The verdicts on answers to exercises."""

import pytest
import torch

from helpers import exercises

RIGHT = torch.arange(6.0).view(2, 3)
VERDICTS = {
    "correct": (RIGHT.clone(), RIGHT, "Exercise 1: correct"),
    "shape": (RIGHT[0], RIGHT, "Exercise 1: wrong shape: it: expected (2, 3), got (3,)"),
    "values": (
        RIGHT + 1,
        RIGHT,
        "Exercise 1: right shape, wrong values: it: off by 2.0e-01 of the largest entry",
    ),
    "NaN": (
        RIGHT * torch.nan,
        RIGHT,
        "Exercise 1: right shape, wrong values: it: holds NaN or infinity",
    ),
    "dtype": (
        RIGHT.double(),
        RIGHT,
        "Exercise 1: wrong dtype: it: expected torch.float32, got torch.float64",
    ),
    "truth values": (
        RIGHT > 2,
        RIGHT,
        "Exercise 1: wrong dtype: it: expected torch.float32, got torch.bool",
    ),
    "nothing": (
        None,
        {"w": RIGHT},
        "Exercise 1: wrong type: it: expected a dict, got NoneType: "
        "the function returned nothing (does it end in `return`?)",
    ),
    "length": (
        (RIGHT,),
        (RIGHT, RIGHT),
        "Exercise 1: wrong length: it: expected 2 items, got 1",
    ),
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


@pytest.mark.parametrize(
    ("got", "verdict"),
    [
        ({"w": RIGHT}, "correct"),
        ({"w": RIGHT[0]}, "wrong shape: it['w']: expected (2, 3), got (3,)"),
        ([RIGHT], "wrong type: it: expected a dict, got list"),
    ],
)
def test_shapes_of_a_dictionary(got, verdict, capsys):
    with exercises.check("Exercise 1"):
        exercises.expect_shape("it", got, {"w": (2, 3)})
    assert capsys.readouterr().out == f"Exercise 1: {verdict}\n"


def test_demand_not_met_says_what_was_measured(capsys):
    with exercises.check("Exercise 1"):
        exercises.require("the peak is below half", False, measured="0.9")
    assert (
        capsys.readouterr().out == "Exercise 1: not so yet: the peak is below half: measured 0.9\n"
    )


def divide(number):
    return number / 0


def test_error_of_the_answer_is_a_verdict(capsys):
    with exercises.check("Exercise 1"):
        divide(1)
    *steps, verdict = capsys.readouterr().out.splitlines()
    assert [step.split(", in ")[1] for step in steps] == [
        "the check: divide(1)",
        "divide: return number / 0",
    ]
    assert verdict == "Exercise 1: your answer raised ZeroDivisionError: division by zero"


def test_error_of_torch_shows_only_lines_of_the_lesson(capsys):
    with exercises.check("Exercise 1"):
        torch.func.vmap(lambda row: row.item())(RIGHT[0])
    *steps, verdict = capsys.readouterr().out.splitlines()
    assert [step.split(", in ")[1].split(":")[0] for step in steps] == ["the check", "<lambda>"]
    assert verdict.startswith("Exercise 1: your answer raised RuntimeError: vmap:")


def test_error_without_kernel_is_not_still_to_do(capsys):
    with exercises.check("Exercise 1"):
        raise NotImplementedError("no kernel\nfor this device")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Exercise 1: your answer raised NotImplementedError: no kernel"


def interrupted(tensor):
    with exercises.check("Exercise 1", it=tensor):
        tensor.zero_()
        raise KeyboardInterrupt


def test_interrupt_ends_the_check(capsys):
    tensor = RIGHT.clone()
    with pytest.raises(KeyboardInterrupt):
        interrupted(tensor)
    assert torch.equal(tensor, RIGHT)
    assert not capsys.readouterr().out


def convert(given):
    given["model"].double()


def replace(given):
    given["grads"]["w"] = RIGHT


def remove(given):
    given["grads"].pop("w")


def zero(given):
    given["grads"]["w"].zero_()


def zero_parameter(given):
    given["model"].weight.data.zero_()


def rename(given):
    given["grads"]["v"] = given["grads"].pop("w")


def record(given):
    given["images"].requires_grad_()


def multiply(given):
    given["images"].mul_(given["model"].weight)


def shrink(given):
    given["images"].data = given["images"][:1]


def freeze(given):
    given["model"].weight.requires_grad_(False)


def zero_weights(given):
    for each in given["weights"]:
        each.zero_()


IN_PLACE = {
    convert: "model['weight'], model['bias']",
    replace: "grads",
    remove: "grads",
    zero: "grads['w']",
    zero_parameter: "model['weight']",
    rename: "grads",
    record: "images",
    multiply: "images",
    shrink: "images",
    zero_weights: "weights[0], weights[1]",
    freeze: "model['weight']",
}


def everything(given):
    """List all that could change in place, for a comparison."""
    tensors = [given["images"], *given["grads"].values(), *given["model"].parameters()]
    tensors += given["weights"]
    return [(t.dtype, t.requires_grad, t.tolist()) for t in tensors]


@pytest.mark.parametrize("change", IN_PLACE, ids=lambda change: change.__name__)
def test_what_is_given_is_put_back(change, capsys):
    given = {
        "images": torch.rand(2, 3),
        "grads": {"w": torch.rand(2, 3)},
        "model": torch.nn.Linear(3, 1),
        "weights": (torch.rand(2), torch.rand(3)),
    }
    before = everything(given)
    with exercises.check("Exercise 1", **given):
        change(given)
        exercises.expect("it", RIGHT, RIGHT + 1)  # the cause is said first
    assert everything(given) == before
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"Exercise 1: not so yet: it changed {IN_PLACE[change]} in place, which is put back"
    )


def test_what_is_given_and_left_alone_is_no_matter(capsys):
    part = {"holds NaN": torch.full((2,), torch.nan), "one number": torch.tensor(1), "text": "it"}
    with exercises.check("Exercise 1", parts=[part], models=(torch.nn.Linear(3, 1),)):
        _ = part["one number"] + 1
    assert capsys.readouterr().out == "Exercise 1: correct\n"
