"""Projection in factors: a gradient that is a sum of products need not be formed.

The gradient of a layer's weight is `sum over t of d_t x_t^T`, with inputs x and gradients d with
respect to the outputs. Sketches S of the outputs and R of the inputs turn that into `sum of (S d_t)
(R x_t)^T`, which needs only the small factors (Choe et al., arXiv:2405.13954). The error of their
inner products decays like one over the square root of the *sides*, so these stay long, and a second
sketch takes the product to the features (Hu et al., arXiv:2505.18976). The map of a parameter
depends on its shape and its random stream alone.
"""

import math

import torch
from torch import Tensor

from helpers.layers.per_sample import PerSampleGradients
from helpers.projection.sketches import Sketch, Total

LARGEST = 2**16
"""Size limit of a reduced matrix, but not of a vector; it changes what seeds mean."""


class Map:
    """The map of one parameter's gradients, with a row for each index of the first dimension."""

    def __init__(self, shape: torch.Size, stream: tuple[int, ...], like: Tensor) -> None:
        self.stream = stream
        self.rows = shape[0] if shape else 1
        self.columns = math.prod(shape[1:])
        rows, columns = _sides(self.rows, self.columns)
        self.left = self.right = None
        if rows < self.rows:
            self.left = Sketch(self.rows, rows, (*stream, 1), like)
        if columns < self.columns:
            self.right = Sketch(self.columns, columns, (*stream, 2), like)

    def reduced(self, gradients: Tensor) -> Tensor:
        """Make gradients `(B, *shape)` smaller: `(B, rows, columns)`."""
        matrix = gradients.reshape(len(gradients), self.rows, self.columns)
        if self.right is not None:
            matrix = self.right(matrix)
        if self.left is not None:
            matrix = self.left(matrix.mT).mT
        return matrix

    def add(self, sample_grads: PerSampleGradients, name: str, total: Total, rows: slice) -> None:
        """Add the features of a parameter, for the samples of a chunk."""
        # Where no side becomes smaller, the gradient is as cheap as its factors.
        is_smaller = self.left is not None or self.right is not None
        # The gradient is the sum over the calls, and this map is linear.
        for call in sample_grads.calls.get(name, []):
            pieces = call.reduced(self.left, self.right) if is_smaller else None
            if pieces is None:
                pieces = self.reduced(call.gradients())
            total.add(pieces.flatten(1), (*self.stream, 0), rows)


def _sides(rows: int, columns: int) -> tuple[int, int]:
    """Choose the sides of the smaller matrix: the longer side of the two is shortened first."""
    if rows * columns <= LARGEST or columns == 1:
        return rows, columns
    side = math.isqrt(LARGEST)  # of a square
    if rows <= side:
        return rows, LARGEST // rows
    if columns <= side:
        return LARGEST // columns, columns
    return side, side
