"""Nothing that the helpers do changes the caller's model, whatever that does, or where it fails."""

import functools

import pytest
import torch
from torch import Tensor, nn

from helpers import gradients, jacobians, norms
from helpers.gradient_computers import FunctionalGradientComputer, IterativeGradientComputer
from helpers.limits import diagnose
from tests import wild, zoo
from tests.oracle import METHODS
from tests.support.traces import difference, everything
from tests.test_gradient_computers import LossOf

pytestmark = pytest.mark.filterwarnings("ignore")

MAKE = {
    **{name: functools.partial(zoo.make, name, 4) for name in zoo.MODELS},
    **{f"wild: {name}": functools.partial(wild.make, name) for name in wild.MODELS},
}


def into_out(model: nn.Module, *rest: object, **options: object) -> object:
    data = rest[1]
    out = {
        name: torch.empty((len(data), *parameter.shape), dtype=parameter.dtype)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    return gradients.func_gradients(model, *rest, out=out, **options)


def computed(kind: type, method: str, model: nn.Module, loss_fn: object, *batch: Tensor) -> object:
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    computer = kind(model, LossOf(loss_fn), count, torch.float64, "cpu")
    return getattr(computer, method)(batch)


WAYS = {
    **METHODS,
    "func into out": into_out,
    "func into out, chunks": functools.partial(into_out, chunk_size=3),
    "loop Jacobians": lambda model, _, data, targets: jacobians.loop_jacobians(model, data),
    "func Jacobians": lambda model, _, data, targets: jacobians.func_jacobians(model, data),
    "func Jacobians, chunks": lambda model, _, data, targets: jacobians.func_jacobians(
        model, data, chunk_size=3
    ),
    "norms": norms.gradient_norms,
    "norms, chunks": functools.partial(norms.gradient_norms, chunk_size=3),
    "clipped sum": lambda *args: norms.clipped_sum(*args, 0.1, chunk_size=3),
    **{
        f"{kind.__name__}.{method}": functools.partial(computed, kind, method)
        for kind in (FunctionalGradientComputer, IterativeGradientComputer)
        for method in ("compute_per_sample_grad", "compute_loss_grad")
    },
    "diagnose": diagnose,
}


class Failed(Exception):
    """What is raised on purpose."""


LEFT = {"calls": 0}
"""How many calls go well, before one fails; no model holds it."""


def fail(*_: object) -> None:
    LEFT["calls"] -= 1
    if LEFT["calls"] < 0:
        raise Failed


def failing_forward(case: zoo.Case) -> zoo.Case:
    """Let modules fail when they have run."""
    for module in case.model.modules():
        module.register_forward_hook(fail)
    return case


def failing_loss(case: zoo.Case) -> zoo.Case:
    def loss_fn(predictions: Tensor, targets: Tensor) -> Tensor:
        fail()
        return right(predictions, targets)

    right, case.loss_fn = case.loss_fn, loss_fn
    return case


def seen(case: zoo.Case) -> dict[str, object]:
    return everything(*case.batch, wild.CACHE, wild.CALLS, wild.ACTIVATIONS, case.model)


def check(case: zoo.Case, calls: int) -> set[str]:
    """Take all ways and compare all that there is; say which of them failed."""
    if not isinstance(case.model, torch.jit.ScriptModule):
        for parameter in list(case.model.parameters())[::2]:
            parameter.grad = torch.full_like(parameter, 7.0)
    before = seen(case)
    failed = set()
    for name, way in WAYS.items():
        LEFT["calls"] = calls
        try:
            way(*case.args)
        except Exception:
            failed.add(name)
        assert difference(before, seen(case)) == [], name
    return failed


@pytest.mark.parametrize("name", MAKE)
def test_no_way_changes_the_model(name):
    uncalled = wild.UNCALLED if name.startswith("wild") else ()
    failed = check(MAKE[name](), 10**9)
    computers = {way for way in failed if "Computer" in way}
    assert bool(computers) == (name.removeprefix("wild: ") in uncalled)
    assert all("Jacobians" in way for way in failed - computers)  # of outputs (B, Y) only


@pytest.mark.parametrize("calls", [0, *(pytest.param(n, marks=pytest.mark.whole) for n in (1, 2))])
@pytest.mark.parametrize("spoil", [failing_forward, failing_loss])
@pytest.mark.parametrize("name", MAKE)
def test_no_way_changes_a_model_that_fails(name, spoil, calls):
    if name == "wild: scripted" and spoil is failing_forward:
        pytest.skip("a scripted module takes no hooks of Python")
    failed = check(spoil(MAKE[name]()), calls)
    assert failed >= {"loop", "IterativeGradientComputer.compute_per_sample_grad"}
