"""Finite differences, for models that differentiate in their forward pass.

The loop and the composition are both autograd, so a derivative that autograd gets wrong is wrong in
both, and comparing them shows nothing.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap
from torch.overrides import TorchFunctionMode

from helpers import devices
from helpers.limits.bare import Case
from helpers.limits.findings import CannotCheckError, Finding, described
from helpers.numbers import in_float64
from helpers.transforms import batches, fallback
from helpers.transforms import randomness as streams
from helpers.transforms.batches import Batch, Tree, tensors_in
from helpers.transforms.loop import graph

DIRECTIONS = 8
"""Along how many random directions derivatives are compared."""
STEP = 1e-5
"""How far a parameter moves in float64, relative to a random direction."""
LARGEST = 1e-3
"""The relative error that counts as equal in float64."""
LARGER_STEPS = (3e-2, 1e-2, 3e-3)
"""Steps in a lower precision, in which a smaller one would measure rounding."""
WORST = 0.1
"""How far two of these may differ for their derivatives to tell anything."""


class Noting(TorchFunctionMode):
    """Note how a forward pass differentiates, by autograd or under a transform."""

    def __init__(self) -> None:
        super().__init__()
        self.differentiates = False
        self.differentiates_twice = False
        self.second_derivatives: list[Tensor | None] = []
        """What `torch.autograd.grad` returned for results of its own."""
        self._slopes: set[Any] = set()
        """The nodes that end the graphs of first derivatives."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tensors_in([args, kwargs]):
            order = 0
            while debug_unwrap(tensor, recurse=False) is not tensor:  # a transform wraps it
                order += _tracks_gradients(tensor)
                tensor = debug_unwrap(tensor, recurse=False)
                self.differentiates = True
            if order > 1:
                self.differentiates_twice = True
        results = func(*args, **(kwargs or {}))
        if func is torch.autograd.grad:
            self.differentiates = True
            self._note_grad(args, kwargs or {}, results)
        return results

    def _note_grad(self, args: Any, kwargs: Any, results: tuple[Tensor | None, ...]) -> None:
        for output in tensors_in([args[:1], kwargs.get("outputs")]):
            if not self._slopes.isdisjoint(graph(output)):
                self.differentiates_twice = True
                self.second_derivatives.extend(results)
                break
        for slope in tensors_in(list(results)):
            if slope.grad_fn is not None:
                self._slopes.add(slope.grad_fn)


def _tracks_gradients(tensor: Tensor) -> bool:
    """Tell whether a transform wraps a tensor to differentiate it, rather than to batch it."""
    try:
        from torch._C._functorch import is_gradtrackingtensor  # noqa: PLC2701
    except ImportError:  # private, so it may go away: then no second derivative is noted here
        return False
    return is_gradtrackingtensor(tensor)


def note(case: Case) -> Noting:
    """Run the model and the loss on one sample, and note how they differentiate."""
    data, targets = case.batch[:1].whole()
    with case.put_back(), Noting() as noting:
        case.loss_fn(batches.call(case.model, data), targets)
    return noting


@dataclass
class _Derivatives:
    """Derivatives of a loss along random directions, `(DIRECTIONS,)` each."""

    by_autograd: Tensor
    by_differences: Tensor
    noise: float = 0.0
    """How far finite differences of two steps differ, relative to them."""

    @property
    def precision(self) -> str:
        return str(self.by_autograd.dtype).removeprefix("torch.")

    def error(self) -> float:
        return _relative(self.by_autograd, self.by_differences)


def _relative(got: Tensor, expected: Tensor) -> float:
    """Return the relative distance of two vectors; 0 where there is no slope."""
    return ((got - expected).norm() / expected.norm().clamp(min=1e-8)).item()


def find_wrong_autograd(
    case: Case, sample: Batch, noting: Noting, predictions: list[Any]
) -> list[Finding]:
    """Compare autograd with finite differences, where the forward pass differentiates.

    This is done in float64; if the model cannot be copied, or does not run in float64, in its own
    precision, with larger steps.

    Args:
        case: What is diagnosed.
        sample: One sample, with a finite loss.
        noting: How the forward pass differentiates.
        predictions: Those of each sample.

    Raises:
        CannotCheckError: The loss is no number, or the precision is too low to tell.
    """
    try:
        with streams.streams_kept(case.devices()):
            measured = _in_float64(case, sample)
    except Exception as error:
        _check_is_not_ours(error)
        measured = _in_own_precision(case, sample, described(error))

    is_constant = not measured.by_differences.any()
    if noting.differentiates_twice and (is_constant or _are_zero(noting, predictions)):
        text = "second derivatives in the forward pass are exactly 0"
        return [Finding("the model", text, "piecewise-linear")]
    error = measured.error()
    if error <= max(LARGEST, 5 * measured.noise):
        return []
    if not measured.by_autograd.any():
        text = f"autograd gives 0, and finite differences in {measured.precision} do not"
        return [Finding("the model", text, "no-gradient")]
    text = (
        f"autograd is {error:.0%} off from finite differences in {measured.precision}, and so is "
        "the loop"
    )
    return [Finding("the model", text, "layernorm-third-order")]


def _check_is_not_ours(error: Exception) -> None:
    """Raise an error again that is neither of the model nor a lack of memory."""
    lacks_memory = isinstance(error, RuntimeError | MemoryError)
    if not lacks_memory and not fallback.leads_to_next_way(error):
        raise error


def _are_zero(noting: Noting, predictions: list[Any]) -> bool:
    """Tell whether second derivatives are zero: what `grad` returned, or a column of outputs."""
    if noting.second_derivatives:
        return not any(tensor.any() for tensor in tensors_in(noting.second_derivatives))
    columns: dict[int, list[Tensor]] = {}
    for prediction in predictions:
        numbers = [tensor for tensor in tensors_in(prediction) if tensor.is_floating_point()]
        for place, tensor in enumerate(numbers):
            columns.setdefault(place, []).append(tensor.detach().flatten())
    for tensors in columns.values():
        if len({tensor.shape for tensor in tensors}) == 1:
            is_zero = (torch.stack(tensors) == 0).all(0)
            if is_zero.any():
                return True
    return False


def _in_float64(case: Case, sample: Batch) -> _Derivatives:
    """Measure a copy of the model in float64."""
    where = devices.for_float64(sample.leaves[0].device)
    data, targets = sample.whole()
    model = copy.deepcopy(case.model).to(where)
    model._apply(_double)  # noqa: SLF001 - `to` would leave complex parameters as they are
    data = batches.mapped(_double_leaf, data)
    targets = batches.mapped(_double_leaf, targets)
    return _measure(case, model, data, targets, STEP)


def _in_own_precision(case: Case, sample: Batch, in_float64: str) -> _Derivatives:
    """Measure the model itself, with the two neighboring steps that differ the least."""
    measured = []
    try:
        for step in LARGER_STEPS:
            with case.put_back():
                measured.append(_measure(case, case.model, *sample.whole(), step))
    except Exception as error:
        _check_is_not_ours(error)
        raise CannotCheckError(
            f"in float64, {in_float64}; in its own, {described(error)}"
        ) from error
    best = measured[0]
    best.noise = torch.inf
    for larger, smaller in pairwise(measured):
        smaller.noise = _relative(larger.by_differences, smaller.by_differences)
        best = min(best, smaller, key=lambda each: each.noise)
    if best.noise > WORST:
        raise CannotCheckError(
            f"in float64, {in_float64}; in {best.precision}, two steps differ by {best.noise:.0%}"
        )
    return best


def _measure(case: Case, model: nn.Module, data: Tree, targets: Tree, step: float) -> _Derivatives:
    params = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not params:
        raise CannotCheckError("no parameter requires a gradient")
    compute_loss = _loss_of(case, model, data, targets)
    directions = _draw(params)
    by_autograd = _along(compute_loss, params, directions)
    return _Derivatives(by_autograd, _differences(compute_loss, params, directions, step))


def _loss_of(case: Case, model: nn.Module, data: Tree, targets: Tree) -> Callable[[], Tensor]:
    """Return a function that computes the loss, with the same random numbers in each call."""
    drawn_from = streams.random_state(case.devices())

    def compute_loss() -> Tensor:
        streams.restore_random_state(drawn_from)
        loss = case.loss_fn(batches.call(model, data), targets)
        if not isinstance(loss, Tensor) or loss.dim():
            raise CannotCheckError("the loss is not a single number")
        if not loss.isfinite():
            raise CannotCheckError("the loss is not finite")
        return loss

    return compute_loss


def _draw(params: list[Tensor]) -> list[list[Tensor]]:
    """Draw random directions, each with a tensor for each parameter."""
    generator = torch.Generator().manual_seed(0)
    directions = []
    for _ in range(DIRECTIONS):
        direction = []
        for parameter in params:
            dtype = torch.complex64 if parameter.is_complex() else torch.float32
            along = torch.randn(parameter.shape, generator=generator, dtype=dtype)
            direction.append(along.to(parameter))
        directions.append(direction)
    return directions


def _along(
    compute_loss: Callable[[], Tensor], params: list[Tensor], directions: list[list[Tensor]]
) -> Tensor:
    """Return the derivative of the loss along each direction by autograd: `grad f(p) . v`.

    Of complex parameters, real and imaginary parts count as numbers of their own.
    """
    loss = compute_loss()
    grads = [torch.zeros_like(parameter) for parameter in params]
    if loss.requires_grad:
        grads = torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True)
    slopes = []
    for direction in directions:
        slope = torch.zeros((), dtype=loss.dtype, device=loss.device)
        for gradient, along in zip(grads, direction, strict=True):
            slope = slope + (gradient.conj() * along).sum().real
        slopes.append(slope)
    return torch.stack(slopes)


def _differences(
    compute_loss: Callable[[], Tensor],
    params: list[Tensor],
    directions: list[list[Tensor]],
    step: float,
) -> Tensor:
    """Return `(f(p + h v) - f(p - h v)) / (2 h)` for each direction v and a small step h."""
    starts = [parameter.detach().clone() for parameter in params]
    differences = []
    for direction in directions:
        _move(params, starts, direction, step)
        ahead = compute_loss().detach()
        _move(params, starts, direction, -step)
        behind = compute_loss().detach()
        differences.append((ahead - behind) / (2 * step))
    with torch.no_grad():
        for parameter, start in zip(params, starts, strict=True):
            parameter.copy_(start)
    return torch.stack(differences)


def _move(params: list[Tensor], starts: list[Tensor], direction: list[Tensor], size: float) -> None:
    """Put parameters at a distance from where they started."""
    with torch.no_grad():
        for parameter, start, along in zip(params, starts, direction, strict=True):
            parameter.copy_(start + size * along)


def _double(tensor: Tensor) -> Tensor:
    """Turn a tensor of real or complex numbers into float64 or complex128."""
    is_exact = not tensor.is_floating_point() and not tensor.is_complex()
    return tensor if is_exact else in_float64(tensor.detach())


def _double_leaf(_: str, value: Any) -> Any:
    return _double(value) if isinstance(value, Tensor) else value
