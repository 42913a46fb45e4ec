"""Verdicts that no answer to a lesson gets: those in tests/lessons/exercises/ try the others."""

import warnings

import pytest
import torch

from helpers import exercises

RIGHT = torch.arange(6.0).view(2, 3)
BYTES = torch.tensor([0, 255], dtype=torch.uint8)
VERDICTS = {
    "correct": (RIGHT.clone(), RIGHT, "correct"),
    "NaN": (RIGHT * torch.nan, RIGHT, "right shape, wrong values: it: holds NaN"),
    "complex": (RIGHT * (1j + 1e-6), RIGHT * 1j, "correct"),
    "truth values": (RIGHT > 2, RIGHT, "wrong dtype"),
    "equal truth values": (RIGHT > 2, RIGHT > 2, "correct"),
    "other truth values": (RIGHT > 3, RIGHT > 2, "right shape, wrong values: it: off by 1.0e+00"),
    "one truth value": (True, True, "correct"),
    "bytes": (BYTES, BYTES | 255, "right shape, wrong values: it: off by 1.0e+00"),
    "no tensor": (None, RIGHT, "wrong type"),
    "shape first": ((RIGHT + 1, RIGHT[0]), (RIGHT, RIGHT), "wrong shape: it[1]"),
}


def verdict(capsys):
    return capsys.readouterr().out.splitlines()[-1].removeprefix("Exercise 1: ")


@pytest.mark.parametrize(("got", "expected", "said"), VERDICTS.values(), ids=VERDICTS)
def test_verdict(got, expected, said, capsys):
    with exercises.check("Exercise 1", print):
        exercises.expect("it", got, expected)
    assert verdict(capsys).startswith(said)


def read(row):
    return row.item()


def test_an_error_of_torch_shows_only_lines_of_the_lesson(capsys):
    with exercises.check("Exercise 1", print):
        torch.func.vmap(read)(RIGHT[0])
    *steps, said = capsys.readouterr().out.splitlines()
    assert [step.split(", in ")[1] for step in steps] == [
        "the check: torch.func.vmap(read)(RIGHT[0])",
        "read: return row.item()",
    ]
    assert said.startswith("Exercise 1: your answer raised RuntimeError: vmap:")


def test_an_error_is_a_verdict_and_not_still_to_do_and_an_interrupt_is_none(capsys):
    with exercises.check("Exercise 1", print):
        raise NotImplementedError("no kernel\nhere")
    assert verdict(capsys) == "your answer raised NotImplementedError: no kernel"
    tensor = RIGHT.clone()
    # `with` would raise the interrupt.
    check = exercises.check("Exercise 1", print, it=tensor)
    check.__enter__()
    tensor.zero_()
    assert not check.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert torch.equal(tensor, RIGHT)
    assert not capsys.readouterr().out


def zero_all(given):
    for weight in given["weights"]:
        weight.zero_()


# What an answer does to what it is given, and the names of what it has changed.
IN_PLACE = {
    "convert": (lambda given: given["model"].double(), "model['weight'], model['bias']"),
    "remove": (lambda given: given["grads"].pop("w"), "grads"),
    "require a gradient": (lambda given: given["images"].requires_grad_(), "images"),
    "zero all": (zero_all, "weights[0], weights[1]"),
}


@pytest.mark.parametrize(("change", "names"), IN_PLACE.values(), ids=IN_PLACE.keys())
def test_what_is_given_is_put_back(change, names, capsys):
    given = {"images": torch.rand(2, 3), "grads": {"w": torch.rand(2, 3)}}
    given |= {"model": torch.nn.Linear(3, 1), "weights": (torch.rand(2), torch.rand(3))}

    def everything():
        tensors = [given["images"], *given["grads"].values(), *given["weights"]]
        tensors += given["model"].parameters()
        return [(t.dtype, t.requires_grad, t.tolist()) for t in tensors]

    before = everything()
    with exercises.check("Exercise 1", print, **given):
        change(given)
        exercises.expect("it", RIGHT, RIGHT + 1)  # the cause is said first
    assert everything() == before
    assert verdict(capsys) == f"not so yet: it changed {names} in place, which is put back"


def test_what_is_left_alone_is_no_matter_and_switches_are_put_back(capsys):
    part = {"holds NaN": torch.full((2,), torch.nan), "one number": torch.tensor(1), "text": "it"}
    filters = list(warnings.filters)
    model = torch.nn.Sequential(torch.nn.Linear(3, 1).eval())  # itself in training mode
    with exercises.check("Exercise 1", print, parts=[part], models=(model,)):
        model.train()
        _ = part["one number"] + 1
        torch.set_grad_enabled(False)
        warnings.simplefilter("error")
    assert verdict(capsys) == "correct"
    assert torch.is_grad_enabled()
    assert warnings.filters == filters
    assert model.training
    assert not model[0].training
