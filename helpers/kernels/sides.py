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
from helpers.layers.recorder import RecordedGradients
from helpers.numbers import wide
from helpers.transforms import batches, checks
from helpers.transforms.batches import Batch

Side = dict[str, Tensor | tuple[Tensor, Tensor]]


def of_jacobians(model: nn.Module, outputs: int, data: Batch) -> Side:
    """Make a side of a block out of Jacobians."""
    return {"": func_jacobians(model, data).flatten(0, 1)}


def of_layers(model: nn.Module, outputs: int, data: Batch) -> Side:
    """Make a side of a block out of the activations of layers, and their output gradients."""
    grads = of_outputs(model, data, outputs)
    side: Side = {}
    for name in checks.select_parameters(model):
        factors = linear_factors(grads, name)
        if factors is not None:
            inputs, output_grads = factors
            # The inputs are the same for all outputs of a sample.
            side[name] = inputs[::outputs], output_grads
            continue
        rows = grads.gradients(name)
        if rows is not None:
            side[name] = rows.reshape(len(rows), -1)
    return side


def dense_size(model: nn.Module, data: Batch) -> int:
    """Count the parameters whose Jacobians must be formed."""
    grads = of_outputs(model, data[:1], 1)  # of summed outputs: only the structure is needed
    size = 0
    for name, parameter in checks.select_parameters(model).items():
        if linear_factors(grads, name) is None:
            size += parameter.numel()
    return size


def of_outputs(model: nn.Module, data: Batch, outputs: int) -> PerSampleGradients:
    """Differentiate each output of each sample, ordered by sample, then by output."""
    # The gradient of an output is that of the product of all outputs with a one-hot vector. So each
    # sample occurs once for each output, together with that vector.
    repeated = data[torch.arange(len(data)).repeat_interleave(outputs)]
    one_hot = torch.eye(outputs, device=data.leaves[0].device).repeat(len(data), 1)

    def loss(model: nn.Module, *sample: Tensor) -> Tensor:
        leaves, chosen = sample[:-1], sample[-1]
        (inputs,) = data.of_one(leaves)
        return (batches.call(model, inputs)[0] * chosen).sum()

    params = checks.select_parameters(model)
    problem = RecordedGradients(loss, model, params, repeated.beside("one_hot", one_hot))
    with problem.prepared():
        return problem.compute(slice(None))


def linear_factors(grads: PerSampleGradients, name: str) -> tuple[Tensor, Tensor] | None:
    """Return the inputs and output gradients whose outer products are a parameter's gradients."""
    call = grads.only_call(name)
    if type(call) is not Linear:
        return None
    output_grads, inputs = next(call.matrices())  # (B, groups, positions, ...)
    if output_grads.shape[1:3] != (1, 1):
        return None  # several outer products
    return inputs.flatten(1), output_grads.flatten(1)


def contract(left: Side, right: Side, outputs: int) -> Tensor | None:
    """Sum the products of two sides over parameters: `(c1, c2, Y, Y)`; `None` where it is zero."""
    total: Tensor | None = None
    for name, first in left.items():
        if name not in right:
            continue
        second = right[name]
        if isinstance(first, tuple) and isinstance(second, tuple):
            # Both are outer products, so their inner product is (x x') (g g').
            inputs, grads = first
            other_inputs, other_grads = second
            block = _by_output(grads @ other_grads.mH, outputs)
            block *= (inputs @ other_inputs.mH)[:, None, :, None]
        else:
            block = _by_output(_dense(first, outputs) @ _dense(second, outputs).mH, outputs)
        # A complex gradient holds two real ones: those with respect to the real and the imaginary
        # part. The sum of their inner products is the real part of `g @ g.mH`.
        block = block.real.to(wide(block.dtype).to_real())
        total = block if total is None else total.add_(block)
    return None if total is None else total.transpose(1, 2)


def _by_output(products: Tensor, outputs: int) -> Tensor:
    """Return `(c1 * Y, c2 * Y)` as `(c1, Y, c2, Y)`."""
    return products.unflatten(0, (-1, outputs)).unflatten(2, (-1, outputs))


def _dense(rows: Tensor | tuple[Tensor, Tensor], outputs: int) -> Tensor:
    """Return rows `(c * Y, p)`, multiplied out if they are given by their factors."""
    if isinstance(rows, Tensor):
        return rows
    inputs, grads = rows
    inputs = inputs.repeat_interleave(outputs, 0)  # one row per output
    return torch.einsum("ro,ri->roi", grads, inputs).flatten(1)
