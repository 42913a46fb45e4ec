"""The neural tangent kernel, a block of samples at a time."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from tqdm import tqdm

from helpers.jacobians import no_jacobians
from helpers.kernels import columns, free_memory, sides
from helpers.transforms import batches, checks
from helpers.transforms.batches import Batch, Tree

METHODS = ("auto", "jacobian", "vector", "structured")

# How many numbers both sides of a block are meant to hold together: 512 MB in float32.
_CHUNK = 2**27


@torch.inference_mode(False)
def ntk(
    model: nn.Module,
    x1: Tree,
    x2: Tree | None = None,
    *,
    method: str = "auto",
    chunk_size: int | None = None,
) -> Tensor:
    """Compute the empirical neural tangent kernel between two batches, or of one with itself.

    The memory beside the result is bounded whatever P is: two chunks of samples lie there at a
    time. A bar shows the progress of what takes more than a second.

    Args:
        model: Any module that maps `(B, ...)` to outputs `(B, Y)`.
        x1: `(N1, ...)`, or a tree of such tensors.
        x2: `(N2, ...)`, likewise, with samples of the same shape; `None` means `x1`, and half of
            the work.
        method: `"jacobian"` contracts Jacobians `(c, Y, P)` of chunks. `"structured"` takes one
            parameter after the other, and that of a linear layer which meets one vector a sample
            by its inputs and output gradients alone: `(x x') (g g')`. `"vector"` takes one output
            of one sample after the other, with a vjp and a jvp: N2 x Y passes over `x1`, and a
            memory of P. `"auto"` takes the structure where layers have one, else Jacobians, and
            vectors where the Jacobian of one sample is too large.
        chunk_size: How many samples of a side to take at a time; `None` takes as many as 512 MB
            are estimated to hold.

    Returns:
        `(N1, N2, Y, Y)`, detached.

    Raises:
        TypeError: `x1` or `x2` is no tree of tensors.
        ValueError: The samples of `x1` and `x2` differ in shape, the method is unknown, the kernel
            or two chunks of Jacobians would not fit into the memory that is free, or one of the
            refusals of `helpers.jacobians.func_jacobians`.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)  # the gradient of the output is the input
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
        >>> ntk(model, x)[:, :, 0, 0]
        tensor([[1., 1.],
                [1., 5.]])
    """
    symmetric = x2 is None
    checks.check_model(model)
    x1 = batches.take(model, x1=x1)
    x2 = x1 if symmetric else batches.take(model, x2=x2)
    shapes = [[tuple(leaf.shape[1:]) for leaf in x.tensors.values()] for x in (x1, x2)]
    if shapes[0] != shapes[1]:
        one, other = (", ".join(map(str, each)) for each in shapes)
        raise ValueError(f"x1 and x2 must hold samples of one shape, got {one} and {other}")
    if method not in METHODS:
        raise ValueError(f"method must be {', '.join(map(repr, METHODS))}, got {method!r}")
    checks.check_options(chunk_size)
    checks.check_model(model)
    empty = no_jacobians(model, x1)
    _, outputs, count = empty.shape  # Y and P
    shape = (len(x1), len(x2), outputs, outputs)
    kernel = free_memory.zeros(shape, empty)
    if kernel.numel() == 0 or count == 0:
        return kernel
    way, dense = _choose(method, model, x1, outputs, count)
    if way == "vector":
        step = chunk_size or max(1, _CHUNK // (128 * _size(x1)))
        return columns.fill(model, x1, x2, kernel, step)
    # What a network keeps of a sample is not known before it has run: for each output, some tens of
    # times what the sample has.
    step = chunk_size or max(1, _CHUNK // (2 * outputs * (dense + 64 * _size(x1)) + 2))
    step = min(step, max(len(x1), len(x2)))
    if chunk_size is not None:
        free_memory.check_chunk(
            chunk_size, min(step, len(x1)) + min(step, len(x2)), outputs * dense, empty
        )
    side = partial(sides.structured if way == "structured" else sides.rows, model, outputs)
    for rows, others in _blocks(len(x1), len(x2), step, symmetric):
        if others.start == (rows.start if symmetric else 0):
            left = None  # or it would lie beside the next one
            left = side(x1[rows])
        right = left if symmetric and rows == others else side(x2[others])
        block = sides.contract(left, right, outputs)
        del right
        if block is None:
            continue
        kernel[rows, others] = block
        if symmetric and rows != others:
            kernel[others, rows] = block.permute(1, 0, 3, 2)
    return kernel


def _choose(
    method: str, model: nn.Module, data: Batch, outputs: int, count: int
) -> tuple[str, int]:
    """Choose a way; return it, and for how many parameters it holds the derivatives of a sample."""
    if method in ("jacobian", "vector"):
        return method, count
    found = sides.of_outputs(model, data[:1], 1)  # of their sum, for the structure alone
    params = checks.select_parameters(model)
    dense = sum(p.numel() for name, p in params.items() if sides.linear(found, name) is None)
    if dense < count and (method == "structured" or 2 * outputs * dense <= _CHUNK):
        return "structured", dense
    if method == "structured":
        return "jacobian", count  # where no layer has such a structure
    return ("jacobian" if 2 * outputs * count <= _CHUNK else "vector"), count


def _size(data: Batch) -> int:
    """Return how many numbers a sample has."""
    return sum(leaf[0].numel() for leaf in data.leaves)


def _blocks(n1: int, n2: int, step: int, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    """Yield the blocks of a kernel, row by row; of a symmetric one those of the upper half."""
    pairs = [
        (slice(i, min(i + step, n1)), slice(j, min(j + step, n2)))
        for i in range(0, n1, step)
        for j in range(i if symmetric else 0, n2, step)
    ]
    yield from tqdm(pairs, desc="kernel", leave=False, delay=1)
