"""Every way to the same numbers: what it computes for a case, and what it must be."""

import functools
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
    compute: Callable[[Case, Truth], Named]
    expected: Callable[[Truth], Named]
    takes: Callable[[Truth], bool] = lambda truth: True


class LossOf(AbstractModelOutput):
    def __init__(self, loss_fn: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.loss_fn = loss_fn

    def get_output(self, model, weights, buffers, sample, target) -> Tensor:
        prediction = functional_call(model, (weights, buffers), (sample[None],))
        return self.loss_fn(prediction, target[None])

    def get_out_to_loss_grad(self, model, weights, buffers, batch) -> Tensor:
        return functional_call(model, (weights, buffers), (batch[0],)).flatten(1)[:, :1]


def computer(kind: type, case: Case, **options: object) -> object:
    count = sum(p.numel() for p in _learned(case).values())
    return kind(case.model, LossOf(case.loss_fn), count, torch.float64, case.data.device, **options)


def empty_out(case: Case) -> Named:
    """Make tensors to write gradients into, full of what they must not keep."""
    size = len(case.targets)
    return {n: p.new_full((size, *p.shape), math.nan) for n, p in _learned(case).items()}


def into_out(case: Case, truth: Truth, **options: object) -> Named:
    out = empty_out(case)
    got = gradients.func_gradients(*case.args, out=out, **options)
    assert all(got[name] is out[name] for name in out)
    return got


def _has_jacobians(truth: Truth) -> bool:
    return truth.outputs.dim() == 2 and truth.outputs.shape[1] <= 24


def _learned(case: Case) -> Named:
    return {name: p.detach() for name, p in case.model.named_parameters() if p.requires_grad}


_of_gradients = functools.partial(Way, expected=lambda truth: truth.gradients)
_of_norms = functools.partial(Way, expected=lambda truth: {"": truth.norms})
_of_jacobians = functools.partial(
    Way, expected=lambda truth: {"J": truth.jacobians}, takes=_has_jacobians
)


def _sample_grad(kind: type, **options: object) -> Way:
    return _of_gradients(
        lambda case, _: computer(kind, case, **options).compute_per_sample_grad(case.batch)
    )


def _loss_grad(kind: type) -> Way:
    return Way(
        lambda case, _: {"": computer(kind, case).compute_loss_grad(case.batch)},
        lambda truth: {"": truth.outputs.flatten(1)[:, :1]},
    )


LOOP = "loop"
WAYS = {
    LOOP: _of_gradients(lambda c, _: gradients.loop_gradients(*c.args)),
    "func": _of_gradients(lambda c, _: gradients.func_gradients(*c.args)),
    "func, chunks": _of_gradients(lambda c, _: gradients.func_gradients(*c.args, chunk_size=2)),
    "func, out": _of_gradients(into_out),
    "func, out, chunks": _of_gradients(functools.partial(into_out, chunk_size=2)),
    "norms": _of_norms(lambda c, _: {"": norms.gradient_norms(*c.args)}),
    "norms, chunks": _of_norms(lambda c, _: {"": norms.gradient_norms(*c.args, chunk_size=1)}),
    "clipped sum": Way(
        lambda c, truth: norms.clipped_sum(*c.args, truth.limit, chunk_size=3),
        lambda truth: truth.clipped_sum,
    ),
    "functional computer": _sample_grad(FunctionalGradientComputer),
    "iterative computer": _sample_grad(IterativeGradientComputer, chunk_size=2),
    "functional computer, loss": _loss_grad(FunctionalGradientComputer),
    "iterative computer, loss": _loss_grad(IterativeGradientComputer),
    "loop Jacobians": _of_jacobians(lambda c, _: {"J": jacobians.loop_jacobians(c.model, c.data)}),
    "func Jacobians": _of_jacobians(lambda c, _: {"J": jacobians.func_jacobians(c.model, c.data)}),
    "func Jacobians, chunks": _of_jacobians(
        lambda c, _: {"J": jacobians.func_jacobians(c.model, c.data, chunk_size=2)}
    ),
    "kernel": Way(
        lambda c, _: {"": kernels.ntk(c.model, c.data)},
        lambda truth: {"": torch.einsum("iap,jbp->ijab", truth.jacobians, truth.jacobians)},
        _has_jacobians,
    ),
}
