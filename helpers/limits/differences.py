"""Finite differences, for models that differentiate in their forward pass.

The loop and the composition are both autograd, so a derivative that autograd gets wrong is wrong in
both, and comparing them shows nothing.
"""

import copy
from typing import Any

import torch
from torch import Tensor
from torch.func import debug_unwrap
from torch.overrides import TorchFunctionMode

from helpers.limits.bare import Case
from helpers.limits.findings import Finding
from helpers.transforms import batches
from helpers.transforms.batches import tensors_in

DIRECTIONS, STEP, LARGEST = 8, 1e-5, 1e-3
"""How many random directions, how far to go, and the relative error that counts as equal."""


class _Noting(TorchFunctionMode):
    """Note whether a forward pass differentiates, by autograd or under a transform."""

    differentiates = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        wrapped = (debug_unwrap(x, recurse=False) is not x for x in tensors_in([args, kwargs]))
        self.differentiates |= func is torch.autograd.grad or any(wrapped)
        return func(*args, **(kwargs or {}))


def compare(case: Case) -> list[Finding]:
    """Compare autograd with finite differences in float64, where the forward pass differentiates.

    A model that cannot be copied, or does not run in float64, is not compared.
    """
    data, targets = case.batch[:1].whole()
    with case.put_back(), _Noting() as noting:
        loss = case.loss_fn(batches.call(case.model, data), targets)
    if not noting.differentiates or not isinstance(loss, Tensor) or not loss.requires_grad:
        return []
    try:
        error = _error(case, data, targets, loss)
    except (RuntimeError, TypeError):
        return []
    if error < LARGEST:
        return []
    measured = f"autograd is {error:.0%} off from finite differences in float64, and so is the loop"
    return [Finding("the model", measured, "layernorm-third-order")]


def _error(case: Case, data: Any, targets: Any, loss: Tensor) -> float:
    """Return the relative error of autograd along random directions; 0 where there is no slope."""
    model = copy.deepcopy(case.model).double()
    data, targets = (batches.mapped(_double, tree) for tree in (data, targets))
    generator = torch.Generator().manual_seed(0)

    def compute() -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return case.loss_fn(batches.call(model, data), targets)

    params = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(compute(), params, allow_unused=True, materialize_grads=True)
    pairs = []
    for _ in range(DIRECTIONS):
        along = [torch.randn(p.shape, generator=generator).to(p) for p in params]
        values = []
        for step in (STEP, -2 * STEP, STEP):  # ahead, behind, and home
            with torch.no_grad():
                for p, v in zip(params, along, strict=True):
                    p += step * v
            values.append(compute().detach())
        slope = sum((g * v).sum() for g, v in zip(grads, along, strict=True))
        pairs.append(torch.stack([slope, (values[0] - values[1]) / (2 * STEP)]))
    slopes, quotients = torch.stack(pairs).T
    return ((slopes - quotients).norm() / quotients.norm().clamp(min=1e-8)).item()


def _double(_: str, value: Any) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.detach().double() if floating else value
