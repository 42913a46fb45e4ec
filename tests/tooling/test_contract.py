"""The contract as it is held against models of libraries: verdicts on models that break it."""

import torch
from torch import nn

from helpers import gradients
from tests.support import contract


def linear() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(3, 2).double(), torch.randn(3, 3, dtype=torch.float64)


def test_a_model_that_is_right_holds_in_all_ways():
    assert contract.check(*linear()) == ([], [])


def test_a_wrong_number_is_found_and_measured(monkeypatch):
    right = gradients.func_gradients

    def off(*args, **options):
        found = right(*args, **options)
        return found | {"bias": found["bias"] * 1.01}

    monkeypatch.setattr(gradients, "func_gradients", off)
    broken, _ = contract.check(*linear())
    assert [each.partition(":")[0] for each in broken] == ["func", "chunks", "out"]
    assert broken[0].startswith("func: 1 of 2 parameters off, bias by ")


def test_damage_is_found_and_placed(monkeypatch):
    right = gradients.loop_gradients

    def damaging(model, *args):
        found = right(model, *args)
        model.weight.data[0, 0] += 1e-9
        return found

    monkeypatch.setattr(gradients, "loop_gradients", damaging)
    (broken,), _ = contract.check(*linear())
    assert broken.startswith("loop: changes ")
    assert "weight" in broken


class Drawing(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs) + torch.rand(2) * 0


class Alone(nn.Linear):
    def forward(self, inputs):
        if torch.is_grad_enabled() and len(inputs) == 1:
            raise ValueError("no batch of one")
        return super().forward(inputs)


def test_a_refusal_is_ours_and_any_other_error_is_not():
    data = linear()[1]
    broken, refused = contract.check(Drawing(3, 2).double(), data)
    assert broken == []
    assert len(refused) == 7
    broken, _ = contract.check(Alone(3, 2).double(), data)
    assert "loop: ValueError: no batch of one" in broken
