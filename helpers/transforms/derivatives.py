"""Derivatives of a scalar function of each sample: by a loop of backwards, or by `vmap(grad)`.

What `helpers.gradients` and `helpers.gradient_computers` have in common. The function is that of
`helpers.transforms.samples`: `function(model, params, buffers, *sample)`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad

from helpers.transforms import samples


def by_loop(
    function: Callable[..., Tensor],
    model: nn.Module,
    params: dict[str, Tensor],
    batch: tuple[Tensor, ...],
    *,
    dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """Differentiate a scalar function of each sample by `params`, in plain autograd.

    Args:
        function: See `helpers.transforms.samples`; returns a scalar.
        model: Any module.
        params: Detached tensors by parameter name.
        batch: Tensors `(B, ...)`, at least one.
        dtype: Of the result; `None` means that of each tensor of `params`.

    Returns:
        `{name: (B, *shape)}`, detached; zeros where the function does not reach a parameter.

    Raises:
        ValueError: The function draws random numbers.
    """
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in params.items()}
    grads = _zeros(leaves, len(batch[0]), dtype)
    if leaves:
        for index, scalar in enumerate(samples.loop(function, model, leaves, batch)):
            if scalar.requires_grad:
                rows = torch.autograd.grad(scalar, list(leaves.values()), materialize_grads=True)
                for per_sample_grad, row in zip(grads.values(), rows, strict=True):
                    per_sample_grad[index] = row.detach()  # zeros of torch 2.6 require grad
    return grads


def by_vmap(
    function: Callable[..., Tensor],
    model: nn.Module,
    params: dict[str, Tensor],
    batch: tuple[Tensor, ...],
    *,
    dtype: torch.dtype | None = None,
    chunk_size: int | None = None,
    randomness: str = "error",
    out: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Differentiate a scalar function of each sample by `params`, with `vmap` over `grad`.

    Args:
        function: See `helpers.transforms.samples`; returns a scalar.
        model: Any module.
        params: Detached tensors by parameter name.
        batch: Tensors `(B, ...)`, at least one.
        dtype: Of the result; `None` means that of each tensor of `params`.
        chunk_size: How many samples at a time; `None` means all.
        randomness: `"error"`, `"different"` or `"same"`, as in `torch.vmap`.
        out: `{name: (B, *shape)}`, where to write the result; `None` means into new tensors.

    Returns:
        `{name: (B, *shape)}`, detached; zeros where the function does not reach a parameter.

    Raises:
        ValueError: The function draws random numbers and `randomness` is `"error"`.
    """
    if len(batch[0]) == 0 or not params:
        return _zeros(params, len(batch[0]), dtype) if out is None else out

    def gradient(*args: Any) -> dict[str, Tensor]:
        grads = grad(function, argnums=1)(*args)
        # Converted here, a chunk at a time, and not when all are there.
        return {name: tensor.to(dtype or tensor.dtype) for name, tensor in grads.items()}

    options = {"chunk_size": chunk_size, "randomness": randomness}
    places = None if out is None else lambda _: out
    return samples.vmapped(gradient, model, params, batch, out=places, **options)


def _zeros(
    params: dict[str, Tensor], batch_size: int, dtype: torch.dtype | None
) -> dict[str, Tensor]:
    """Make room for the gradients of a batch."""
    return {
        name: tensor.new_zeros((batch_size, *tensor.shape), dtype=dtype, requires_grad=False)
        for name, tensor in params.items()
    }
