"""The contract as it is held against models of libraries: verdicts on models that break it."""

import pytest
import torch
from torch import nn

from helpers import gradients
from tests.support import contract
from tests.support.zoo import Apply


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2).double(), torch.randn(3, 3, dtype=torch.float64)


def test_a_model_that_is_right_holds_in_all_ways(linear):
    assert contract.check(*linear) == ([], [])


def test_a_wrong_number_is_found(linear, monkeypatch):
    right = gradients.func_gradients

    def off(*args, **options):
        found = right(*args, **options)
        found["bias"] *= 1.01
        return found

    monkeypatch.setattr(gradients, "func_gradients", off)
    broken, _ = contract.check(*linear)
    ways = "func", "func, chunks", "func, out, chunks"
    assert [each.partition(" Tensor")[0] for each in broken] == [
        f"{way}: AssertionError: bias:" for way in ways
    ]


def test_damage_is_found_and_placed(linear, monkeypatch):
    right = gradients.loop_gradients

    def damaging(model, *args):
        found = right(model, *args)
        model.weight.data[0, 0] += 1e-9
        return found

    monkeypatch.setattr(gradients, "loop_gradients", damaging)
    (broken,), _ = contract.check(*linear)
    assert broken.startswith("loop: changes ")
    assert "weight" in broken


def drawing(self, inputs):
    return self.fc(inputs) + torch.rand(2) * 0


def refusing(self, inputs):
    if torch.is_grad_enabled() and len(inputs) == 1:
        raise ValueError("no batch of one")
    return self.fc(inputs)


def test_a_refusal_is_ours_and_any_other_error_is_not(linear):
    broken, refused = contract.check(Apply(drawing, fc=linear[0]), linear[1])
    assert (broken, len(refused)) == ([], len(contract.TAKEN))
    broken, _ = contract.check(Apply(refusing, fc=linear[0]), linear[1])
    assert "loop: ValueError: no batch of one" in broken
