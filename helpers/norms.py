"""Norms of per-sample gradients, and their clipped sum, without the gradients of a whole batch.

The batch is taken in chunks. In each, one forward and backward pass (`helpers.layers.recorder`)
gives the activations of linear layers, convolutions and embeddings and the gradients at their
outputs, from which norms and sums follow, and the gradients themselves of every parameter that is
used in another way. Refusals, and how the model is left, are as in `helpers.gradients`.

Opacus 1.6.0 does this for linear layers and embeddings, but misses other uses of their weights.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from helpers import gradients
from helpers.layers.layer_call import SMALL, LayerCall, dense, squared_norms
from helpers.layers.per_sample import PerSampleGradients
from helpers.layers.recorder import per_sample_gradients
from helpers.numbers import is_real, wide
from helpers.transforms import checks, fallback, loop
from helpers.transforms.batches import Batch, Tree

LossFn, Tensors = Callable[[Any, Any], Tensor], dict[str, Tensor]

# How many numbers a chunk should hold, including its gradients: 512 MB in float32.
_CHUNK = 2**27

# How many eps a clipped gradient stays below the limit, which rounding of its norm, of the factor
# and of the products must not exceed. Norms by Gram matrices need the most.
_ROUNDINGS = 64


@torch.inference_mode(False)
@fallback.warning_once
def gradient_norms(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tree,
    targets: Tree = None,
    *,
    wrt: Iterable[str] | None = None,
    chunk_size: int | str | None = "auto",
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
            `"auto"` as many as should fit in 512 MB.
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
    params, batch = gradients.prepare(model, data, targets, wrt)
    loss = functools.partial(gradients.sample_loss, loss_fn, batch)
    result = torch.zeros(len(batch), dtype=_dtype(params), device=batch.leaves[0].device)
    for rows, grads in _chunks(loss, model, params, batch, chunk_size, randomness):
        norms, _ = _norms_and_calls(params, grads, result[rows])
        odd = ~((norms >= SMALL**2) & (norms < math.inf))
        if odd.any():
            largest, unit = _scaled(params, grads.rows(odd), norms[odd])
            norms[odd] = largest * unit
        result[rows] = norms
        del grads  # or it would lie beside that of the next chunk
    if len(batch) and not result.any():
        loop.gradients(loss, model, params, batch[:1].leaves, randomness=randomness, warn=True)
    return result


@torch.inference_mode(False)
@fallback.warning_once
def clipped_sum(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tree,
    targets: Tree = None,
    limit: float | None = None,
    *,
    mask: Tensor | None = None,
    wrt: Iterable[str] | None = None,
    chunk_size: int | str | None = "auto",
    randomness: str = "error",
) -> dict[str, Tensor]:
    """Compute the sum of the samples' gradients, each scaled down to a norm of at most `limit`.

    No sample adds more than `limit`. One whose gradient is NaN or infinite adds nothing, or every
    entry would reveal it. `gradient_norms` shows which ones these are; that is private, too.

    The sum is itself rounded to its dtype, which with B samples can shift it by a further
    `B * limit * eps` (Casacuberta et al. 2022, arXiv:2207.10635). In bfloat16 that would be more
    than the limit; so the sum stays in float32 or wider, to be rounded after noise is added.
    Where a GPU replaces float32 by TF32, products keep ten bits; see `devices.make_repeatable`.

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
            `"auto"` as many as should fit in 512 MB.
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
    params, batch = gradients.prepare(model, data, targets, wrt)
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (len(batch),):
            raise ValueError("mask must be a boolean tensor (B,), True for each sample that counts")
        batch = batch[mask]
    loss = functools.partial(gradients.sample_loss, loss_fn, batch)
    result = {n: torch.zeros_like(t, dtype=wide(t.dtype)) for n, t in params.items()}
    eps = max((torch.finfo(total.dtype).eps for total in result.values()), default=0.0)
    limit = float(limit) * (1 - _ROUNDINGS * eps)
    for rows, grads in _chunks(loss, model, params, batch, chunk_size, randomness):
        zeros = batch.leaves[0].new_zeros(len(batch), dtype=_dtype(params))[rows]
        norms, calls = _norms_and_calls(params, grads, zeros, keep=True)
        odd = ~(norms < math.inf) | (limit < SMALL)
        if odd.any():
            for name, total in _scaled_totals(params, grads.rows(odd), zeros[odd], limit):
                result[name] += total
            grads, calls = grads.rows(~odd), {}
            if not odd.all():
                norms, calls = _norms_and_calls(params, grads, zeros[~odd], keep=True)
        factors = (limit / norms).clamp(max=1)
        for name in calls:
            result[name] += calls[name].total(factors.to(calls[name].output_grads.dtype))
        del grads, calls  # free them before the next chunk
    if len(batch) and not any(total.any() for total in result.values()):
        loop.gradients(loss, model, params, batch[:1].leaves, randomness=randomness, warn=True)
    return result


def _norms_and_calls(
    params: Tensors, grads: PerSampleGradients, like: Tensor, *, keep: bool = False
) -> tuple[Tensor, dict[str, LayerCall]]:
    """Compute the norms of a chunk; if `keep`, also return calls from which sums follow."""
    if any(tensor.dtype != wide(tensor.dtype) for tensor in params.values()):
        grads = grads.rows(slice(None))
    squares, calls = torch.zeros_like(like), {}
    for name in params:
        call = grads.only_call(name)
        squared = call and call.squares(then_total=keep)
        if squared is None and (gradients := grads.gradients(name)) is not None:
            call, squared = dense(gradients), squared_norms(gradients)
        if squared is not None:
            squares += squared
            if keep:
                calls[name] = call
    return squares.sqrt(), calls


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


def _scaled_totals(
    params: Tensors, grads: PerSampleGradients, like: Tensor, limit: float
) -> Iterator[tuple[str, Tensor]]:
    """Yield names and sums of clipped gradients, of any size; non-finite ones are left out."""
    largest, unit = _scaled(params, grads, like)
    counts = largest.isfinite() & (largest > 0)
    grads, largest, unit = grads.rows(counts), largest[counts], unit[counts]
    for name, gradient in _flattened(params, grads):
        factors = (limit / unit).minimum(largest).to(gradient.dtype)
        yield name, (factors @ (gradient / largest[:, None])).view(params[name].shape)


def _flattened(params: Tensors, grads: PerSampleGradients) -> Iterator[tuple[str, Tensor]]:
    """Yield names and gradients `(B, P)`, one parameter after the other."""
    for name, tensor in params.items():
        gradient = grads.gradients(name) if tensor.numel() else None
        if gradient is not None:
            yield name, gradient.reshape(-1, tensor.numel())


def _estimated(batch: Batch, params: Tensors) -> int:
    """Estimate how many samples a chunk may hold, before the network has run."""
    # An image network keeps a few dozen times the sample's size; of a token, each layer keeps its
    # inputs and its outputs. The gradients of the largest parameter may come to that.
    pairs = zip(batch.paths, batch.leaves, strict=True)
    first = [leaf[0] for path, leaf in pairs if not path.startswith("targets")]
    numbers = 64 * sum(sample.numel() for sample in first if sample.is_floating_point())
    tokens = max((sample.numel() for sample in first if not sample.is_floating_point()), default=0)
    numbers += tokens * sum(sum(tensor.shape[:2]) for tensor in params.values())
    return max(1, _CHUNK // (numbers + max(tensor.numel() for tensor in params.values()) + 1))


def _chunks(
    function: Callable[..., Tensor],
    model: nn.Module,
    params: Tensors,
    batch: Batch,
    chunk_size: int | str | None,
    randomness: str,
) -> Iterator[tuple[slice, PerSampleGradients]]:
    """Check the options, and differentiate chunk by chunk."""
    checks.check_options(None if chunk_size == "auto" else chunk_size, randomness)
    if not len(batch) or not params:
        return iter(())
    step = _estimated(batch, params) if chunk_size == "auto" else chunk_size
    return per_sample_gradients(function, model, params, batch.leaves, step, randomness=randomness)


def _dtype(params: Tensors) -> torch.dtype:
    """Return the dtype of norms: that of the parameters, real, float32 at least."""
    dtypes = (tensor.dtype for tensor in params.values())
    return functools.reduce(torch.promote_types, dtypes, torch.float32).to_real()
