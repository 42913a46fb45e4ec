"""Gradients through a training run, with respect to the weights of its samples in the loss.

A training is a function of these weights. Its derivative says what a sample did in *this* run, with
this initialization and this order (Maclaurin, Duvenaud and Adams 2015, arXiv:1502.03492; Engstrom
et al. 2025, arXiv:2503.13751). Lesson 12b writes it for one training.

Plain `vjp` would keep the graph of all S steps. Instead, about sqrt(S) states are kept. From each,
the steps up to the next one run again, and only their graph is held, for one more forward pass.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap
from torch.overrides import TorchFunctionMode
from tqdm import tqdm

from helpers.transforms.batches import mapped

State = Any
"""A tree of tensors: parameters, and what an optimizer keeps."""


class _WithoutWeightNorm(TorchFunctionMode):
    """Refuse `weight_norm` while a step runs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "_weight_norm":
            raise ValueError(
                "a step uses weight_norm, whose second derivative torch gets wrong: "
                "write the weight as g * v / v.norm()"
            )
        return func(*args, **(kwargs or {}))


@torch.inference_mode(False)
@torch.no_grad()  # outside only: `vjp` makes graphs of its own
def metagradient(
    step: Callable[[State, Tensor, Any], State],
    start: State,
    weights: Tensor,
    batches: Sequence[Any] | Tensor,
    measure: Callable[[State], Tensor],
    *,
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Train, and differentiate what is measured at the end.

    Args:
        step: `step(state, weights, batch)` returns the next state: one step of the training, for
            example with `torch.func.grad`. It writes nothing in place.
        start: The first state, a pytree of tensors. It is not changed.
        weights: `(N,)`, floating point: the weight of each sample's loss.
        batches: The batch of each step, in order: often indices `(steps, B)`.
        measure: Maps the last state to numbers `(T,)`, or to a scalar `()`.
        chunk_size: How many numbers to differentiate at a time, to bound memory; `None` means all.

    Returns:
        The numbers `(T,)` and their gradients with respect to the weights, `(T, N)`, or `()` and
        `(N,)`; detached.

    Raises:
        ValueError: There is no step, a step has no finite derivative, or it uses `weight_norm`,
            whose second derivative torch gets wrong (page 6b).

    Example:
        >>> def step(w, weights, batch):  # gradient descent on weights * (w - 1)^2 / 2
        ...     return w - 0.5 * weights[batch] * (w - 1)
        >>> ones, batches = torch.ones(2), [0, 1]
        >>> metagradient(step, torch.tensor(0.0), ones, batches, lambda w: w)  # 1 - (1 - w / 2)^2
        (tensor(0.7500), tensor([0.2500, 0.2500]))
    """
    if not len(batches):
        raise ValueError("batches must hold at least 1 step, got none")
    size = math.isqrt(len(batches) - 1) + 1  # the square root, rounded up
    segments = []
    for first in range(0, len(batches), size):
        segments.append(batches[first : first + size])

    def run(state: State, weights: Tensor, segment: Sequence[Any] | Tensor) -> State:
        with _WithoutWeightNorm():
            for batch in segment:
                state = step(state, weights, batch)
        return state

    # Forward: keep only the state before each segment.
    state = start
    states = []
    for segment in segments:
        states.append(state)
        state = run(state, weights, segment)

    # The slopes of the T measured numbers with respect to the last state. Without `has_aux`, `vjp`
    # returns two values, which its annotation does not say: hence each `type: ignore[misc]`.
    measured, pull = vjp(measure, state)  # type: ignore[misc]
    count = measured.numel()
    basis = torch.eye(count, dtype=measured.dtype, device=measured.device)
    (slopes,) = vmap(pull, chunk_size=chunk_size)(basis.view(count, *measured.shape))
    is_finite = measured.isfinite().all()  # else the training has diverged, which the reader sees
    place = _not_finite(slopes)
    if is_finite and place:
        raise ValueError(f"measure has no finite derivative with respect to {place}")

    # Backward: run each segment again, now with a graph, and pull the slopes through it. A weight
    # counts in each segment that draws its sample, so these parts are added up.
    total = weights.new_zeros(count, *weights.shape)
    for segment in tqdm(segments[::-1], desc="back through training", delay=1, leave=False):
        state = states.pop()
        _, pull = vjp(functools.partial(run, segment=segment), state, weights)  # type: ignore[misc]
        slopes_after = slopes
        slopes, from_segment = vmap(pull, chunk_size=chunk_size)(slopes_after)
        if is_finite and not from_segment.isfinite().all():
            _refuse_infinite_slopes(run, segment, state, weights, slopes_after)
        total += from_segment
    return measured, total.view(measured.shape + weights.shape)


def _refuse_infinite_slopes(
    run: Callable[..., State],
    segment: Sequence[Any] | Tensor,
    state: State,
    weights: Tensor,
    slopes: State,
) -> None:
    """Raise ValueError that names the last step through which slopes are not finite.

    `slopes` are those of the measured numbers with respect to the state after the segment.
    """
    before = []  # the state before each step
    for index in range(len(segment)):
        before.append(state)
        state = run(state, weights, segment[index : index + 1])
    for index in reversed(range(len(segment))):
        step = functools.partial(run, segment=segment[index : index + 1])
        _, pull = vjp(step, before[index], weights)  # type: ignore[misc]
        slopes, from_step = vmap(pull)(slopes)
        place = _not_finite(slopes)
        if place or not from_step.isfinite().all():
            raise ValueError(
                f"a step has no finite derivative with respect to {place or 'the weights'}: the "
                "slope of a square root or of a standard deviation at 0 is infinite, as in Adam "
                "where a gradient is exactly 0; put epsilon inside the root, "
                "(v + eps**2).sqrt() in place of v.sqrt() + eps"
            )


def _not_finite(slopes: State) -> str:
    """Name the part of the state whose slopes are not finite; `""` if all are finite."""
    shares: dict[str, float] = {}  # of entries that are not finite

    def note(path: str, leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and not leaf.isfinite().all():
            shares[f"state{path}"] = 1 - leaf.isfinite().float().mean().item()
        return leaf

    mapped(note, slopes)
    # From where it begins, NaN spreads to all that depends on it: the smallest share says most.
    return min(shares, key=shares.__getitem__, default="")
