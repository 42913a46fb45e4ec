"""Norms of per-sample gradients, and their clipped sum, without the gradients of a whole batch.

The batch is taken in chunks. In each, linear layers, convolutions, embeddings, LayerNorm and
GroupNorm are reduced from what goes into the layer and the gradient that comes back
(`helpers.layers.uses`), in one forward and backward. Every other parameter, and every one that is
used in another way as well, is reduced from its gradients for the chunk, by `func_gradients`.
Which way a parameter goes is found out for each chunk, and is exact either way. A model that
`func_gradients` refuses is refused here.

Opacus 1.6.0 has this way too, in `GradSampleModuleFastGradientClipping`, for linear layers and
embeddings; it makes the gradients of the other layers, convolutions included, for the whole batch.
It wraps the model, refuses a layer that is used twice, and does not see a weight that is also used
outside of its layer: the norm is then wrong, without an error.

The arguments, the refusals, and that the model is left as it was are those of
`helpers.gradients.func_gradients`.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from numbers import Real

import torch
from torch import Tensor, nn

from helpers import gradients
from helpers.layers import uses, watch
from helpers.transforms import checks
from helpers.transforms.randomness import random_state, restore_random_state

LossFn = Callable[[Tensor, Tensor], Tensor]


@torch.inference_mode(False)
def gradient_norms(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tensor,
    targets: Tensor,
    *,
    wrt: Iterable[str] | None = None,
    chunk_size: int | None = 64,
    randomness: str = "error",
) -> Tensor:
    """Compute the Euclidean norm of each sample's gradient, over all parameters together.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`.
        targets: `(B, ...)`.
        wrt: Names of the parameters to differentiate; `None` means all with `requires_grad`.
        chunk_size: How many samples to take at a time; `None` means all. It bounds the memory.
        randomness: As in `func_gradients`.

    Returns:
        `(B,)`, detached; in float32, or in float64 if a parameter is.

    Raises:
        TypeError: `data` or `targets` is no tensor, or `wrt` is one string.
        ValueError: One of the refusals of `func_gradients`.

    Example:
        >>> model, data, targets = nn.Linear(2, 1, bias=False), torch.eye(2), torch.ones(2, 1)
        >>> _ = nn.init.zeros_(model.weight)
        >>> gradient_norms(model, nn.functional.mse_loss, data, targets)  # (0 - 1)^2 rises by 2
        tensor([2., 2.])
    """
    params = _prepare(model, data, targets, wrt, chunk_size, randomness)
    batch = (data.detach(), targets)
    result = data.new_zeros(len(data), dtype=_dtype(params))
    for part, reduced in _chunks(model, loss_fn, batch, params, chunk_size, randomness):
        result[part] = reduced.norms
        del reduced
    return result


@torch.inference_mode(False)
def clipped_sum(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tensor,
    targets: Tensor,
    limit: float,
    *,
    wrt: Iterable[str] | None = None,
    chunk_size: int | None = 64,
    randomness: str = "error",
) -> dict[str, Tensor]:
    """Compute the sum of the samples' gradients, each scaled down to a norm of at most `limit`.

    Args:
        model: Any module that maps `(B, ...)` to predictions `(B, ...)`.
        loss_fn: `loss_fn(predictions, targets)`, given a batch of one, returns a scalar.
        data: `(B, ...)`.
        targets: `(B, ...)`.
        limit: The largest norm, over all parameters together, that a gradient keeps.
        wrt: Names of the parameters to differentiate; `None` means all with `requires_grad`.
        chunk_size: How many samples to take at a time; `None` means all. It bounds the memory.
        randomness: As in `func_gradients`.

    Returns:
        `{name: parameter.shape}`, detached; zeros for an empty batch.

    Raises:
        TypeError: `data` or `targets` is no tensor, or `wrt` is one string.
        ValueError: One of the refusals of `func_gradients`, or a `limit` that is not above 0.

    Example:
        >>> model, data, targets = nn.Linear(2, 1, bias=False), torch.eye(2), torch.ones(2, 1)
        >>> _ = nn.init.zeros_(model.weight)
        >>> clipped_sum(model, nn.functional.mse_loss, data, targets, limit=0.5)["weight"]
        tensor([[-0.5000, -0.5000]])
    """
    if not isinstance(limit, Real) or isinstance(limit, bool) or not 0 < limit < math.inf:
        raise ValueError(f"limit must be a finite Python number above 0, got {limit!r}")
    params = _prepare(model, data, targets, wrt, chunk_size, randomness)
    batch = (data.detach(), targets)
    result = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
    for _, reduced in _chunks(model, loss_fn, batch, params, chunk_size, randomness):
        factors = (limit / reduced.norms).clamp(max=1)
        for name, total in reduced.totals(factors):
            result[name] += total
        del reduced
    return result


class _Reduced:
    """The gradients of a chunk, as far as they are there: uses, and gradients by name."""

    def __init__(
        self, params: dict[str, Tensor], seen: list[uses.Use], grads: dict[str, Tensor], size: int
    ) -> None:
        self.grads = grads
        self.seen: dict[str, list[tuple[uses.Use, str]]] = {}
        for use in seen:
            for role, name in use.names.items():
                if use.grads is not None and name not in grads:
                    self.seen.setdefault(name, []).append((use, role))
        like = next(iter(params.values()), torch.empty(()))
        squares = like.new_zeros(size, dtype=_dtype(params))
        for found in self.seen.values():
            if len(found) == 1:
                ((use, role),) = found
                squares += use.squares(role)
            else:  # the norm of a sum is not known from the norms of its terms
                squares += uses.squared_norms(sum(use.gradients(role) for use, role in found))
        for gradient in grads.values():
            squares += uses.squared_norms(gradient)
        self.norms = squares.sqrt()

    def totals(self, factors: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield names and parts of the sum of the gradients, each times its factor."""
        for name, found in self.seen.items():
            for use, role in found:
                total = use.total(role, factors.to(use.grads.dtype))
                yield name, total
        for name, gradient in self.grads.items():
            yield name, torch.einsum("b,b...->...", factors.to(gradient.dtype), gradient)


def _chunks(
    model: nn.Module,
    loss_fn: LossFn,
    batch: tuple[Tensor, Tensor],
    params: dict[str, Tensor],
    chunk_size: int | None,
    randomness: str,
) -> Iterator[tuple[slice, _Reduced]]:
    """Differentiate one chunk after the other."""
    size = len(batch[0])
    step = max(size, 1) if chunk_size is None else chunk_size
    device = batch[0].device
    first = random_state(device)
    watchable = bool(params)
    for start in range(0, size, step):
        if randomness == "same":
            restore_random_state(first, device)
        state = random_state(device)
        part = slice(start, start + step)
        data, targets = (tensor[part] for tensor in batch)
        seen: list[uses.Use] = []
        others = list(params)
        if watchable:
            try:
                seen, others = watch.watched(
                    gradients.sample_loss(loss_fn),
                    model,
                    params,
                    (data, targets),
                    randomness=randomness,
                )
            except Exception:  # what is wrong with the model, if anything, the next call says
                watchable = False
        grads = {}
        if others:
            restore_random_state(state, device)  # so that both ways draw the same random numbers
            grads = gradients.func_gradients(
                model, loss_fn, data, targets, wrt=others, randomness=randomness
            )
        yield part, _Reduced(params, seen, grads, len(data))
        del seen, grads  # or they would lie beside those of the next chunk


def _prepare(
    model: nn.Module,
    data: Tensor,
    targets: Tensor,
    wrt: Iterable[str] | None,
    chunk_size: int | None,
    randomness: str,
) -> dict[str, Tensor]:
    """Check the input and choose the parameters."""
    params = gradients.prepare(model, data, targets, wrt)
    checks.check_chunk_size(chunk_size)
    checks.check_randomness(randomness)
    return params


def _dtype(params: dict[str, Tensor]) -> torch.dtype:
    """Return the dtype of norms: that of the parameters, float32 at least."""
    return functools.reduce(
        torch.promote_types, (tensor.dtype for tensor in params.values()), torch.float32
    )
