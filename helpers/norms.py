"""Norms of per-sample gradients, and their clipped sum, without the gradients of a whole batch.

The batch is taken in chunks. In each, one forward and backward pass (`helpers.layers.recorder`)
gives the activations of linear layers, convolutions and embeddings and the gradients at their
outputs, from which norms and sums follow, and the gradients themselves of every parameter that is
used in another way. Lesson 7b writes it for linear layers. Refusals, and how the model is left,
are as in `helpers.gradients`.

Opacus 1.6.0 does this for linear layers and embeddings, but misses other uses of their weights.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from helpers.layers.layer_call import SMALL, squared_norms
from helpers.layers.per_sample import PerSampleGradients
from helpers.layers.recorder import RecordedGradients
from helpers.numbers import is_real, wide
from helpers.transforms import switches
from helpers.transforms.batches import Tree

LossFn = Callable[[Any, Any], Tensor]
Tensors = dict[str, Tensor]

# How many numbers a chunk should hold, including its gradients: 512 MB in float32.
_CHUNK = 2**27

# How many eps a clipped gradient stays below the limit, which rounding of its norm, of the factor
# and of the products must not exceed. Norms by Gram matrices need the most.
_ROUNDINGS = 64


@torch.inference_mode(False)
def gradient_norms(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tree,
    targets: Tree = None,
    *,
    wrt: Iterable[str] | None = None,
    chunk_size: int | Literal["auto"] | None = "auto",
    randomness: str = "error",
) -> Tensor:
    """Compute the Euclidean norm of each sample's gradient, over all parameters together.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`, or a pytree of such tensors.
        targets: Likewise; `None` where the loss needs none.
        wrt: Names of the parameters to differentiate; `None` means all with `requires_grad`.
        chunk_size: How many samples to take at a time, which bounds the memory; `None` means all,
            `"auto"` as many as should fit in 512 MB, or in a sixteenth of a GPU's memory.
        randomness: As in `func_gradients`.

    Returns:
        `(B,)`, detached; in float32, or in float64 if a parameter has that precision. Of a complex
        gradient it is the norm of its real and imaginary parts together; of one that is not
        finite, infinite or NaN.

    Raises:
        TypeError: `data` or `targets` is not a pytree of tensors, or `wrt` is one string.
        ValueError: One of the refusals of `func_gradients`.

    Example:
        >>> model, data, targets = nn.Linear(2, 1, bias=False), torch.eye(2), torch.ones(2, 1)
        >>> _ = nn.init.zeros_(model.weight)
        >>> gradient_norms(model, nn.functional.mse_loss, data, targets)  # slope at 0: 2 (0 - 1)
        tensor([2., 2.])
    """
    problem = RecordedGradients.of_loss(model, loss_fn, data, targets, wrt, randomness)
    slices = _slices(problem, chunk_size)
    norms = _zeros(problem)
    if problem.is_empty:
        return norms
    with switches.full_float32, problem.prepared():
        for rows in slices:
            grads = problem.compute(rows)
            measured, _ = grads.norms(problem.params, norms[rows])
            # Norms may lack eps * SMALL, an eighth of a float32 norm of SMALL**2. Smaller ones, and
            # those that overflowed, are computed again from scaled gradients.
            odd = ~((measured >= SMALL**2) & (measured < math.inf))
            if odd.any():
                largest, unit = _scaled(problem.params, grads.rows(odd), measured[odd])
                measured[odd] = largest * unit
            norms[rows] = measured
            del grads  # or it would lie beside that of the next chunk
    problem.warn_if_constant()
    return norms


@torch.inference_mode(False)
def clipped_sum(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tree,
    targets: Tree = None,
    limit: float | None = None,
    *,
    mask: Tensor | None = None,
    wrt: Iterable[str] | None = None,
    chunk_size: int | Literal["auto"] | None = "auto",
    randomness: str = "error",
) -> dict[str, Tensor]:
    """Compute the sum of the samples' gradients, each scaled down to a norm of at most `limit`.

    No sample adds more than `limit`. One whose gradient is NaN or infinite adds nothing, or every
    entry would reveal it. `gradient_norms` shows which ones these are; that is private, too.

    The sum is itself rounded to its dtype, which with B samples can shift it by a further
    `B * limit * eps` (Casacuberta et al. 2022, arXiv:2207.10635). In bfloat16 that would be more
    than the limit; so the sum stays in float32 or wider, to be rounded after noise is added.
    Norms and sums come from different products, so TF32, which rounds these to ten bits on GPUs,
    is switched off during the call.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`, or a pytree of such tensors.
        targets: Likewise; `None` where the loss needs none.
        limit: The largest norm, over all parameters together, that a gradient keeps; required.
        mask: `(B,)`, boolean: which samples count, where a batch is padded to a fixed size
            (arXiv:2406.17298); `None` means all. The others are not computed.
        wrt: Names of the parameters to differentiate; `None` means all with `requires_grad`.
        chunk_size: How many samples to take at a time, which bounds the memory; `None` means all,
            `"auto"` as many as should fit in 512 MB, or in a sixteenth of a GPU's memory.
        randomness: As in `func_gradients`.

    Returns:
        `{name: parameter.shape}`, detached, in float32 or wider; zeros for an empty batch.

    Raises:
        TypeError: `data` or `targets` is not a pytree of tensors, or `wrt` is one string.
        ValueError: One of the refusals of `func_gradients`, a `limit` that is not above 0,
            or a malformed `mask`.

    Example:
        >>> model, data, targets = nn.Linear(2, 1, bias=False), torch.eye(2), torch.ones(2, 1)
        >>> _ = nn.init.zeros_(model.weight)
        >>> clipped_sum(model, nn.functional.mse_loss, data, targets, limit=0.5)["weight"]
        tensor([[-0.5000, -0.5000]])
    """
    if not is_real(limit) or not 0 < limit < math.inf:
        raise ValueError(f"limit must be a finite Python number above 0, got {limit!r}")
    problem = RecordedGradients.of_loss(model, loss_fn, data, targets, wrt, randomness)
    if mask is not None:
        size = len(problem)
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (size,):
            raise ValueError("mask must be a boolean tensor (B,), True for each sample that counts")
        problem.batch = problem.batch[mask]
    slices = _slices(problem, chunk_size)
    params = problem.params
    totals = {}
    for name, parameter in params.items():
        totals[name] = torch.zeros_like(parameter, dtype=wide(parameter.dtype))
    if problem.is_empty:
        return totals
    eps = max(torch.finfo(total.dtype).eps for total in totals.values())
    limit = float(limit) * (1 - _ROUNDINGS * eps)
    zeros = _zeros(problem)
    with switches.full_float32, problem.prepared():
        for rows in slices:
            # Nothing else holds the gradients, so they are freed before the next chunk.
            _add_clipped(totals, params, problem.compute(rows), zeros[rows], limit)
    problem.warn_if_constant()
    return totals


def _add_clipped(
    totals: Tensors, params: Tensors, grads: PerSampleGradients, zeros: Tensor, limit: float
) -> None:
    """Add the clipped gradients of a chunk, whose norms are to be like `zeros`, to sums."""
    norms, calls = grads.norms(params, zeros, keep=True)
    # A square may have overflowed, or the limit is so small that a norm may have vanished.
    odd = ~(norms < math.inf) | (limit < SMALL)
    if odd.any():
        _add_scaled(totals, params, grads.rows(odd), norms[odd], limit)
        ordinary = ~odd
        if not ordinary.any():
            return
        grads = grads.rows(ordinary)
        norms, calls = grads.norms(params, zeros[ordinary], keep=True)
    factors = (limit / norms).clamp(max=1)
    for name, call in calls.items():
        # A call that has a norm has them.
        dtype = call.output_grads.dtype  # type: ignore[union-attr]
        totals[name] += call.total(factors.to(dtype))


def _scaled(params: Tensors, grads: PerSampleGradients, like: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the largest entry of each gradient, and the norm of the gradient divided by it."""
    # This way no square overflows or vanishes. What is not finite is divided by 1.
    largest, squares = torch.zeros_like(like), torch.zeros_like(like)
    for _, gradient in _flattened(params, grads):
        largest = largest.maximum(gradient.abs().amax(1))
    divisors = largest.where(largest.isfinite() & (largest > 0), 1)[:, None]
    for _, gradient in _flattened(params, grads):
        squares += squared_norms(gradient / divisors)
    return largest, squares.sqrt()


def _add_scaled(
    totals: Tensors, params: Tensors, grads: PerSampleGradients, like: Tensor, limit: float
) -> None:
    """Add clipped gradients, of any size, to sums; non-finite ones are left out."""
    largest, unit = _scaled(params, grads, like)
    counts = largest.isfinite() & (largest > 0)
    if not counts.any():
        return
    grads, largest, unit = grads.rows(counts), largest[counts], unit[counts]
    for name, gradient in _flattened(params, grads):
        factors = (limit / unit).minimum(largest).to(gradient.dtype)
        totals[name] += (factors @ (gradient / largest[:, None])).view(params[name].shape)


def _flattened(params: Tensors, grads: PerSampleGradients) -> Iterator[tuple[str, Tensor]]:
    """Yield names and gradients `(B, P)`, one parameter after the other."""
    for name, tensor in params.items():
        gradient = grads.gradients(name) if tensor.numel() else None
        if gradient is not None:
            yield name, gradient.reshape(-1, tensor.numel())


def _slices(problem: RecordedGradients, chunk_size: int | Literal["auto"] | None) -> list[slice]:
    """Return the chunks of the batch as slices, of a size that should fit if it is "auto"."""
    if chunk_size == "auto":
        chunk_size = None  # all
        if not problem.is_empty:
            fitting = _estimated(problem)
            chunk_size = fitting if fitting < len(problem) else None
    return problem.slices(chunk_size)


def _estimated(problem: RecordedGradients) -> int:
    """Estimate how many samples a chunk may hold, before the network has run."""
    # An image network keeps a few dozen times the sample's size; of a token, each layer keeps its
    # inputs and its outputs. The gradients of the largest parameter may come to that.
    numbers, tokens = 0, 0
    for path, leaf in zip(problem.batch.paths, problem.batch.leaves, strict=True):
        if path.startswith("targets"):
            continue
        if leaf[0].is_floating_point():
            numbers += 64 * leaf[0].numel()
        else:
            tokens = max(tokens, leaf[0].numel())
    for parameter in problem.params.values():
        numbers += tokens * sum(parameter.shape[:2])
    largest = max(parameter.numel() for parameter in problem.params.values())
    return max(1, _chunk_numbers(problem.batch.leaves[0].device) // (numbers + largest + 1))


def _chunk_numbers(device: torch.device) -> int:
    """Return how many numbers a chunk may take: on a GPU, a sixteenth of its memory."""
    if device.type != "cuda":
        return _CHUNK
    return max(_CHUNK, torch.cuda.get_device_properties(device).total_memory // 16 // 4)


def _zeros(problem: RecordedGradients) -> Tensor:
    """Return zeros `(B,)` in the dtype of norms: that of the parameters, real, at least float32."""
    dtype = torch.float32
    for parameter in problem.params.values():
        dtype = torch.promote_types(dtype, parameter.dtype)
    device = problem.batch.leaves[0].device
    return torch.zeros(len(problem), dtype=dtype.to_real(), device=device)
