"""Full per-sample Jacobians `(B, Y, P)`: every output with respect to every parameter.

The P columns are the parameters with `requires_grad`, in the order of `model.named_parameters()`,
each flattened. Lesson 4 writes both ways in a few lines. Refusals, and how the model is left, are
as in `helpers.gradients`.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from helpers.transforms import batches, checks
from helpers.transforms.batches import Batch, Leaf, Tree
from helpers.transforms.functional import functional
from helpers.transforms.known_wrong import JACREV
from helpers.transforms.loop import by_backward
from helpers.transforms.problem import Problem
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
        ValueError: The outputs are not real `(B, Y)`, the model has BatchNorm in training mode, or
            its forward pass draws random numbers.
    """
    problem = _problem(model, data)
    if problem.is_empty:
        return problem.nothing()
    with problem.prepared():
        return problem.looped(problem.batch.leaves)


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
        ValueError: The outputs are not real `(B, Y)`, the model has BatchNorm in training mode, its
            forward pass draws random numbers, or `chunk_size` is below 1.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> jacobians = func_jacobians(model, torch.ones(4, 3))
        >>> tuple(jacobians.shape)  # 8 parameters: 2 x 3 weights, 2 biases
        (4, 2, 8)
    """
    problem = _problem(model, data)
    return problem.collect(chunk_size)


class _Jacobians(Problem):
    """Jacobians `(B, Y, P)` of a function that returns the outputs `(Y,)` of a sample."""

    def vmapped(self, leaves: tuple[Tensor, ...]) -> Tensor:
        """Differentiate all outputs of all samples at once."""
        in_dims = (None, None) + (0,) * len(leaves)  # samples share parameters and buffers
        compute_jacobians = vmap(jacrev(functional(self, JACREV)), in_dims=in_dims)
        with self.under_vmap():
            blocks = compute_jacobians(self.params, self.buffers, *leaves)
        rows = []
        for name, block in blocks.items():  # (b, Y, *shape)
            size, outputs = block.shape[:2]
            rows.append(block.reshape(size, outputs, self.params[name].numel()))
        return torch.cat(rows, dim=2)

    def looped(self, leaves: tuple[Leaf, ...]) -> Tensor:
        """Differentiate one output of one sample after the other."""
        size = len(leaves[0])
        for index in range(size):
            jacobian = self.alone(leaves, index, self._backward)  # (Y, P)
            if index == 0:
                jacobians = jacobian.new_empty((size, *jacobian.shape))
            jacobians[index] = jacobian
        return jacobians

    def nothing(self) -> Tensor:
        """Return Jacobians of no sample, or of no parameter."""
        return no_jacobians(self.model, self.batch, size=len(self))

    def _backward(self, outputs: Tensor) -> Tensor:
        """Differentiate the outputs of one sample: `(Y, P)`."""
        parameters = [self.parts.parameters[name] for name in self.params]
        dtype = parameters[0].dtype
        for parameter in parameters:
            dtype = torch.promote_types(dtype, parameter.dtype)
        count = _count(self.params)
        jacobian = torch.zeros(len(outputs), count, dtype=dtype, device=parameters[0].device)
        for row, output in zip(jacobian, outputs, strict=True):
            grads = by_backward(output, parameters, retain_graph=True)
            start = 0
            for parameter, gradient in zip(parameters, grads, strict=True):
                stop = start + parameter.numel()
                if gradient is not None:
                    row[start:stop] = gradient.flatten()
                start = stop
        return jacobian


def _problem(model: nn.Module, data: Tree) -> _Jacobians:
    """Check the arguments, and make the problem of the outputs' Jacobians."""
    parts = checks.check_model(model)
    batch = batches.take(model, data=data)
    params = checks.select_parameters(model, parts=parts)

    return _Jacobians(partial(_outputs, batch), model, params, batch, parts=parts)


def _outputs(batch: Batch, model: nn.Module, *sample: Tensor) -> Tensor:
    """Run the model on one sample: outputs `(Y,)`."""
    outputs = batches.call(model, batch.of_one(sample)[0])
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != 1:
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"the model must return outputs (B, Y), got {got} for a batch of one")
    if outputs.is_complex():
        raise ValueError(
            f"the model must return real outputs, got {outputs.dtype}: "
            "return its real and imaginary parts as two outputs"
        )
    return outputs.squeeze(0)


def _count(params: dict[str, Tensor]) -> int:
    return sum(parameter.numel() for parameter in params.values())


def no_jacobians(model: nn.Module, batch: Batch, *, size: int = 0) -> Tensor:
    """Return zeros `(size, Y, P)`; the model runs on a sample, or zeros, to find Y."""
    params = checks.select_parameters(model)
    with preserved(model, params), torch.enable_grad():  # a forward pass may differentiate
        outputs = _outputs(batch, model, *batch.first())
    return outputs.detach().new_zeros((size, len(outputs), _count(params)))
