"""What the blocks of a kernel are products of: the derivatives of the outputs of some samples.

A side is a dictionary by parameter. It holds rows `(c * Y, p)`, whose products are summed over the
parameters, or for a linear layer that meets one vector a sample its inputs `(c, in)` and the
gradients at its outputs `(c * Y, out)`, which take less room and less arithmetic.
"""

import torch
from torch import Tensor, nn

from helpers import gradients
from helpers.jacobians import func_jacobians, unflatten_jacobians
from helpers.layers.found import Found
from helpers.layers.linear import Linear
from helpers.layers.watch import Watch
from helpers.transforms import modules

Side = dict[str, Tensor | tuple[Tensor, Tensor]]


def rows(model: nn.Module, outputs: int, data: Tensor) -> Side:
    """Make a side of a block out of Jacobians."""
    return {"": func_jacobians(model, data).flatten(0, 1)}


def structured(model: nn.Module, outputs: int, data: Tensor) -> Side:
    """Make a side of a block out of what goes into the layers, and the gradients that come back."""
    found = watched(model, data, outputs)
    if found is None:
        return _by_name(model, data)
    side: Side = {}
    for name in modules.select_parameters(model):
        use = linear(found, name)
        if use is not None:  # the inputs are the same for all outputs of a sample
            side[name] = use.inputs.flatten(1)[::outputs], use.grads.flatten(1)
        elif (rows := found.gradients(name)) is not None:
            side[name] = rows.flatten(1) if rows.dim() > 1 else rows[:, None]
    return side


def watched(model: nn.Module, data: Tensor, outputs: int) -> Found | None:
    """Differentiate each output of each sample: sample by sample, its outputs side by side.

    Returns:
        What was found for `(c * Y)` scalars; `None` for a model that cannot be watched.
    """

    def pick(values: Tensor, chosen: Tensor) -> Tensor:
        return (values[0] * chosen).sum()

    each = data.repeat_interleave(outputs, dim=0)
    one_hot = torch.eye(outputs, device=data.device).repeat(len(data), 1)
    watch = Watch(gradients.sample_loss(pick), model, modules.select_parameters(model))
    ((_, found),) = watch.chunks((each, one_hot), len(each))
    return found


def linear(found: Found, name: str) -> Linear | None:
    """Return the use that makes a parameter's gradients outer products of two vectors."""
    use = found.only_use(name)
    if use is None or type(use[0]) is not Linear or use[1] != "weight":
        return None
    return use[0] if use[0].inputs.shape[1:-1].numel() == 1 else None


def contract(left: Side, right: Side, outputs: int) -> Tensor | None:
    """Sum the products of two sides over all parameters.

    Returns:
        `(c1, c2, Y, Y)`; `None` where no parameter reaches both sides: the block is zero.
    """
    total: Tensor | None = None
    for name in [name for name in left if name in right]:
        one, other = left[name], right[name]
        if isinstance(one, tuple) and isinstance(other, tuple):
            grads = (one[1] @ other[1].T).unflatten(0, (-1, outputs)).unflatten(2, (-1, outputs))
            part = grads.mul_((one[0] @ other[0].T)[:, None, :, None])
        else:
            one, other = _dense(one, outputs), _dense(other, outputs)
            part = (one @ other.T).unflatten(0, (-1, outputs)).unflatten(2, (-1, outputs))
        total = part if total is None else total.add_(part)
    return None if total is None else total.transpose(1, 2)


def _dense(rows: Tensor | tuple[Tensor, Tensor], outputs: int) -> Tensor:
    """Return rows `(c * Y, p)`, multiplied out if they are given by their factors."""
    if isinstance(rows, Tensor):
        return rows
    inputs, grads = rows
    return torch.einsum("ro,ri->roi", grads, inputs.repeat_interleave(outputs, 0)).flatten(1)


def _by_name(model: nn.Module, data: Tensor) -> Side:
    """Make the same of a chunk that cannot be watched, though the first sample could."""
    blocks = unflatten_jacobians(func_jacobians(model, data), model)
    return {name: block.flatten(0, 1).flatten(1) for name, block in blocks.items()}
