"""Full per-sample Jacobians `(B, Y, P)`: every output with respect to every parameter.

The P columns are the parameters with `requires_grad`, in the order of `model.named_parameters()`,
each flattened. Refusals, and how the model is left, are as in `helpers.gradients`.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from helpers.transforms import batches, checks, loop, samples
from helpers.transforms.batches import Batch, Tree
from helpers.transforms.known_wrong import JACREV
from helpers.transforms.restore import preserved


@torch.inference_mode(False)
def loop_jacobians(model: nn.Module, data: Tree) -> Tensor:
    """Compute Jacobians with two loops, over samples and over outputs, in plain autograd.

    Args:
        model: Any module that maps `(B, ...)` to outputs `(B, Y)`.
        data: `(B, ...)`, or a pytree of such tensors.

    Returns:
        `(B, Y, P)`, detached.

    Raises:
        TypeError: `model` is not a module, or `data` is not a pytree of tensors.
        ValueError: The outputs are not `(B, Y)`, the model has BatchNorm in training mode, or its
            forward pass draws random numbers.
    """
    checks.check_model(model)
    batch = batches.take(model, data=data)
    return _by_loop(model, checks.select_parameters(model), batch)


@torch.inference_mode(False)
def func_jacobians(model: nn.Module, data: Tree, *, chunk_size: int | None = None) -> Tensor:
    """Compute Jacobians with `torch.func`: `vmap` over `jacrev`.

    Args:
        model: Any module that maps `(B, ...)` to outputs `(B, Y)`.
        data: `(B, ...)`, or a pytree of such tensors.
        chunk_size: How many samples to differentiate at a time; `None` means all. It bounds the
            memory of intermediate values, not that of the result, B x Y x P numbers.

    Returns:
        `(B, Y, P)`, detached.

    Raises:
        TypeError: `model` is not a module, or `data` is not a pytree of tensors.
        ValueError: The outputs are not `(B, Y)`, the model has BatchNorm in training mode, its
            forward pass draws random numbers, or `chunk_size` is below 1.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> jacobians = func_jacobians(model, torch.ones(4, 3))
        >>> tuple(jacobians.shape)  # 8 parameters: 2 x 3 weights, 2 biases
        (4, 2, 8)
    """
    checks.check_model(model)
    batch = batches.take(model, data=data)
    checks.check_options(chunk_size)
    params = checks.select_parameters(model)
    blocks = jacrev(samples.functional(_outputs(batch), model, params, JACREV))

    def compute_jacobian(*args: Any) -> Tensor:
        return torch.cat([output[..., None].flatten(1) for output in blocks(*args).values()], 1)

    compute_jacobians = vmap(compute_jacobian, in_dims=(None, None, *batch.in_dims))
    by_loop = functools.partial(_by_loop, model, params, batch)
    options = {"otherwise": by_loop, "chunk_size": chunk_size}
    return samples.batched(compute_jacobians, model, params, batch.leaves, **options)


def _by_loop(model: nn.Module, params: dict[str, Tensor], batch: Batch) -> Tensor:
    """Compute Jacobians `(B, Y, P)`, a row at a time."""
    if not len(batch) or not params:
        return no_jacobians(model, batch, size=len(batch))
    parameters, result = dict(model.named_parameters()), None
    leaves = [parameters[name] for name in params]

    def backward(outputs: Tensor) -> list[list[Tensor]]:
        return [loop.by_backward(output, leaves, retain_graph=True) for output in outputs]

    def store(index: int, rows: list[list[Tensor]]) -> None:
        nonlocal result
        if result is None:
            like = torch.cat([parameter.new_empty(0) for parameter in params.values()])
            result = like.new_empty((len(batch), len(rows), _count(params)))
        for row, blocks in zip(result[index], rows, strict=True):
            row.copy_(torch.cat([block.flatten() for block in blocks]))

    loop.for_each(_outputs(batch), model, params, batch.leaves, store, backward=backward)
    return result


def _outputs(batch: Batch) -> Callable[..., Tensor]:
    """Make a function that runs the model on one sample: outputs `(Y,)`."""

    def run(model: nn.Module, *sample: Tensor) -> Tensor:
        outputs = batches.call(model, batch.of_one(sample)[0])
        if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != 1:
            got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ValueError(f"the model must return outputs (B, Y), got {got} for a batch of one")
        return outputs.squeeze(0)

    return run


def _count(params: dict[str, Tensor]) -> int:
    return sum(parameter.numel() for parameter in params.values())


def no_jacobians(model: nn.Module, batch: Batch, *, size: int = 0) -> Tensor:
    """Return zeros `(size, Y, P)`; the model runs on a sample, or zeros, to find Y."""
    params = checks.select_parameters(model)
    with preserved(model, params), torch.enable_grad():  # a forward pass may differentiate
        outputs = _outputs(batch)(model, *batch.first())
    return outputs.detach().new_zeros((size, len(outputs), _count(params)))
