"""Factors of the blocks of a kernel: the derivatives of the outputs for some samples.

A side is a dictionary by parameter, or of one entry for all. It holds rows `(c * Y, p)`, whose
inner products are summed over the entries. For a linear layer that gets one vector per sample, it
holds inputs `(c, in)` and output gradients `(c * Y, out)`: less memory and arithmetic.
"""

import torch
from torch import Tensor, nn

from helpers.jacobians import func_jacobians
from helpers.layers.linear import Linear
from helpers.layers.per_sample import PerSampleGradients
from helpers.layers.recorder import per_sample_gradients
from helpers.numbers import wide
from helpers.transforms import batches, checks
from helpers.transforms.batches import Batch

Side = dict[str, Tensor | tuple[Tensor, Tensor]]


def rows(model: nn.Module, outputs: int, data: Batch) -> Side:
    """Make a side of a block out of Jacobians."""
    return {"": func_jacobians(model, data).flatten(0, 1)}


def structured(model: nn.Module, outputs: int, data: Batch) -> Side:
    """Make a side of a block out of the activations of layers, and their output gradients."""
    grads = of_outputs(model, data, outputs)
    side: Side = {}
    for name in checks.select_parameters(model):
        vectors = linear_factors(grads, name)
        if vectors is not None:  # the inputs are the same for all outputs of a sample
            side[name] = vectors[0][::outputs], vectors[1]
        elif (rows := grads.gradients(name)) is not None:
            side[name] = rows.flatten(1) if rows.dim() > 1 else rows[:, None]
    return side


def dense_size(model: nn.Module, data: Batch) -> int:
    """Count the parameters whose Jacobians must be formed."""
    grads = of_outputs(model, data[:1], 1)  # of summed outputs: only the structure is needed
    params = checks.select_parameters(model)
    return sum(p.numel() for name, p in params.items() if linear_factors(grads, name) is None)


def of_outputs(model: nn.Module, data: Batch, outputs: int) -> PerSampleGradients:
    """Differentiate each output of each sample, ordered by sample, then by output."""
    repeated = data[torch.arange(len(data)).repeat_interleave(outputs)]
    one_hot = torch.eye(outputs, device=data.leaves[0].device).repeat(len(data), 1)

    def loss(model: nn.Module, *sample: Tensor) -> Tensor:
        *leaves, chosen = sample
        return (batches.call(model, *data.of_one(leaves))[0] * chosen).sum()

    params = checks.select_parameters(model)
    ((_, grads),) = per_sample_gradients(loss, model, params, (*repeated.leaves, one_hot))
    return grads


def linear_factors(grads: PerSampleGradients, name: str) -> tuple[Tensor, Tensor] | None:
    """Return the inputs and output gradients whose outer products are a parameter's gradients."""
    call = grads.only_call(name)
    if type(call) is not Linear:
        return None
    ((output_grads, inputs),) = call.matrices()
    vectors = output_grads.shape[1:3].numel() == 1  # one group, one position
    return (inputs.flatten(1), output_grads.flatten(1)) if vectors else None


def contract(left: Side, right: Side, outputs: int) -> Tensor | None:
    """Sum the products of two sides over parameters: `(c1, c2, Y, Y)`; `None` where it is zero."""
    total: Tensor | None = None
    for name in [name for name in left if name in right]:
        first, second = left[name], right[name]
        factors = isinstance(first, tuple) and isinstance(second, tuple)
        rows = (
            (first[1], second[1]) if factors else (_dense(first, outputs), _dense(second, outputs))
        )
        block = (rows[0] @ rows[1].T).unflatten(0, (-1, outputs)).unflatten(2, (-1, outputs))
        if factors:
            block *= (first[0] @ second[0].T)[:, None, :, None]
        block = block.to(wide(block.dtype))
        total = block if total is None else total.add_(block)
    return None if total is None else total.transpose(1, 2)


def _dense(rows: Tensor | tuple[Tensor, Tensor], outputs: int) -> Tensor:
    """Return rows `(c * Y, p)`, multiplied out if they are given by their factors."""
    if isinstance(rows, Tensor):
        return rows
    inputs, grads = rows
    return torch.einsum("ro,ri->roi", grads, inputs.repeat_interleave(outputs, 0)).flatten(1)
