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

from helpers import devices
from helpers.limits.bare import Case
from helpers.limits.findings import Finding
from helpers.numbers import in_float64
from helpers.transforms import batches
from helpers.transforms import randomness as streams
from helpers.transforms.batches import Tree, tensors_in

DIRECTIONS = 8
"""Along how many random directions derivatives are compared."""
STEP = 1e-5
"""How far a parameter moves, relative to a random direction."""
LARGEST = 1e-3
"""The relative error that counts as equal."""


class _Noting(TorchFunctionMode):
    """Note whether a forward pass differentiates, by autograd or under a transform."""

    differentiates = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.autograd.grad:
            self.differentiates = True
        for tensor in tensors_in([args, kwargs]):
            if debug_unwrap(tensor, recurse=False) is not tensor:  # a transform wraps it
                self.differentiates = True
        return func(*args, **(kwargs or {}))


def find_wrong_autograd(case: Case) -> list[Finding]:
    """Compare autograd with finite differences in float64, where the forward pass differentiates.

    A model that cannot be copied, or does not run in float64, is not compared.
    """
    data, targets = case.batch[:1].whole()
    with case.put_back(), _Noting() as noting:
        loss = case.loss_fn(batches.call(case.model, data), targets)
    is_scalar = isinstance(loss, Tensor) and loss.dim() == 0
    if not noting.differentiates or not is_scalar or not loss.requires_grad:
        return []
    try:
        with streams.streams_kept(case.devices()):
            error = _error_of_autograd(case, data, targets)
    except (RuntimeError, TypeError):
        return []
    if error < LARGEST:
        return []
    measured = f"autograd is {error:.0%} off from finite differences in float64, and so is the loop"
    return [Finding("the model", measured, "layernorm-third-order")]


def _error_of_autograd(case: Case, data: Tree, targets: Tree) -> float:
    """Return the relative error of autograd along random directions.

    Along a direction v the derivative of the loss f is the product `grad f(p) . v`, and nearly
    `(f(p + h v) - f(p - h v)) / (2 h)` for a small step h.
    """
    where = devices.for_float64(case.batch.leaves[0].device)
    model = copy.deepcopy(case.model).to(where, torch.float64)
    data = batches.mapped(_double, data)
    targets = batches.mapped(_double, targets)
    params = [parameter for parameter in model.parameters() if parameter.requires_grad]

    drawn_from = streams.random_state(case.devices())

    def compute_loss() -> Tensor:
        # The same random numbers before and after a step.
        streams.restore_random_state(drawn_from)
        return case.loss_fn(batches.call(model, data), targets)

    loss = compute_loss()
    grads = torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True)
    generator = torch.Generator().manual_seed(0)
    by_autograd, by_differences = [], []
    for _ in range(DIRECTIONS):
        direction = []
        for parameter in params:
            direction.append(torch.randn(parameter.shape, generator=generator).to(parameter))
        _step(params, direction, STEP)
        ahead = compute_loss().detach()
        _step(params, direction, -2 * STEP)
        behind = compute_loss().detach()
        _step(params, direction, STEP)  # home
        by_differences.append((ahead - behind) / (2 * STEP))

        slope = torch.zeros(()).to(loss)
        for gradient, along in zip(grads, direction, strict=True):
            slope = slope + (gradient * along).sum()
        by_autograd.append(slope)
    expected = torch.stack(by_differences)  # (DIRECTIONS,)
    error = (torch.stack(by_autograd) - expected).norm()
    return (error / expected.norm().clamp(min=1e-8)).item()  # 0 where there is no slope


def _step(params: list[Tensor], direction: list[Tensor], size: float) -> None:
    """Move parameters in place along a direction."""
    with torch.no_grad():
        for parameter, along in zip(params, direction, strict=True):
            parameter += size * along


def _double(_: str, value: Any) -> Any:
    """Turn floating point tensors into float64, which finite differences need."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return in_float64(value.detach())
    return value
