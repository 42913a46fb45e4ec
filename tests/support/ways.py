"""Every way to the same numbers: what it computes for a case, and what it must be."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from helpers import gradients, jacobians, kernels, norms
from helpers.gradient_computers import FunctionalGradientComputer, IterativeGradientComputer
from helpers.model_outputs import AbstractModelOutput
from tests.support.oracle import Truth
from tests.support.zoo import Case

Named = dict[str, Tensor]


@dataclass(frozen=True)
class Way:
    """What it computes for a case, what that must be, and which cases it is for."""

    compute: Callable[[Case, Truth], Named]
    expected: Callable[[Truth], Named]
    takes: Callable[[Truth], bool]


class LossOf(AbstractModelOutput):
    def __init__(self, loss_fn: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.loss_fn = loss_fn

    def get_output(self, model, weights, buffers, sample, target) -> Tensor:
        prediction = functional_call(model, (weights, buffers), (sample[None],))
        return self.loss_fn(prediction, target[None])

    def get_out_to_loss_grad(self, model, weights, buffers, batch) -> Tensor:
        return functional_call(model, (weights, buffers), (batch[0],)).flatten(1)[:, :1]


def learned(case: Case) -> Named:
    """Return the parameters that require a gradient, without their graphs."""
    found = {}
    for name, parameter in case.model.named_parameters():
        if parameter.requires_grad:
            found[name] = parameter.detach()
    return found


def computer(kind: type, case: Case, **options: object) -> object:
    task = LossOf(case.loss_fn)
    count = sum(parameter.numel() for parameter in learned(case).values())
    return kind(case.model, task, count, torch.float64, case.data.device, **options)


def empty_out(case: Case) -> Named:
    """Make tensors to write gradients into, full of what they must not keep."""
    out = {}
    for name, parameter in learned(case).items():
        out[name] = parameter.new_full((len(case.targets), *parameter.shape), math.nan)
    return out


def into_out(case: Case, **options: object) -> Named:
    out = empty_out(case)
    got = case.pass_to(gradients.func_gradients, out=out, **options)
    for name, tensor in out.items():
        assert got[name] is tensor
    return got


# What a way must be. What is one tensor has the name "".


def its_gradients(truth: Truth) -> Named:
    return truth.gradients


def its_norms(truth: Truth) -> Named:
    return {"": truth.norms}


def its_clipped_sum(truth: Truth) -> Named:
    return truth.clipped_sum


def its_first_outputs(truth: Truth) -> Named:
    return {"": truth.outputs.flatten(1)[:, :1]}


def its_jacobians(truth: Truth) -> Named:
    return {"": truth.jacobians}


def its_kernel(truth: Truth) -> Named:
    return {"": torch.einsum("iap,jbp->ijab", truth.jacobians, truth.jacobians)}


def always(truth: Truth) -> bool:
    return True


def has_jacobians(truth: Truth) -> bool:
    return truth.outputs.dim() == 2 and truth.outputs.shape[1] <= 24


WAYS: dict[str, Way] = {}


def way(
    name: str, expected: Callable[[Truth], Named], takes: Callable[[Truth], bool] = always
) -> Callable[[Callable[[Case, Truth], Named]], None]:
    """Enter a function of a case and its truth into the list of ways."""

    def enter(compute: Callable[[Case, Truth], Named]) -> None:
        WAYS[name] = Way(compute, expected, takes)

    return enter


LOOP = "loop"


@way(LOOP, its_gradients)
def _(case, truth):
    return case.pass_to(gradients.loop_gradients)


@way("func", its_gradients)
def _(case, truth):
    return case.pass_to(gradients.func_gradients)


@way("func, chunks", its_gradients)
def _(case, truth):
    return case.pass_to(gradients.func_gradients, chunk_size=2)


@way("func, out", its_gradients)
def _(case, truth):
    return into_out(case)


@way("func, out, chunks", its_gradients)
def _(case, truth):
    return into_out(case, chunk_size=2)


@way("norms", its_norms)
def _(case, truth):
    return {"": case.pass_to(norms.gradient_norms)}


@way("norms, chunks", its_norms)
def _(case, truth):
    return {"": case.pass_to(norms.gradient_norms, chunk_size=1)}


@way("clipped sum", its_clipped_sum)
def _(case, truth):
    return case.pass_to(norms.clipped_sum, truth.limit, chunk_size=3)


@way("functional computer", its_gradients)
def _(case, truth):
    return computer(FunctionalGradientComputer, case).compute_per_sample_grad(case.batch)


@way("iterative computer", its_gradients)
def _(case, truth):
    chunked = computer(IterativeGradientComputer, case, chunk_size=2)
    return chunked.compute_per_sample_grad(case.batch)


@way("functional computer, loss", its_first_outputs)
def _(case, truth):
    return {"": computer(FunctionalGradientComputer, case).compute_loss_grad(case.batch)}


@way("iterative computer, loss", its_first_outputs)
def _(case, truth):
    return {"": computer(IterativeGradientComputer, case).compute_loss_grad(case.batch)}


@way("loop Jacobians", its_jacobians, has_jacobians)
def _(case, truth):
    return {"": jacobians.loop_jacobians(case.model, case.data)}


@way("func Jacobians", its_jacobians, has_jacobians)
def _(case, truth):
    return {"": jacobians.func_jacobians(case.model, case.data)}


@way("func Jacobians, chunks", its_jacobians, has_jacobians)
def _(case, truth):
    return {"": jacobians.func_jacobians(case.model, case.data, chunk_size=2)}


@way("kernel", its_kernel, has_jacobians)
def _(case, truth):
    return {"": kernels.ntk(case.model, case.data)}
