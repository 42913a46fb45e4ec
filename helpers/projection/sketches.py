"""Sparse random projection: each coordinate goes to one place, with a random sign.

A matrix with one entry, -1 or 1, in each row keeps inner products with the same expectation and
second moment of the error as one full of random signs (Charikar, Chen and Farach-Colton 2002;
Weinberger et al., arXiv:0902.2206), at the cost of one addition for each coordinate.

Places drawn one by one would be gathered from all over the memory. Here coordinates are taken in
blocks as long as the result, and each block is added with signs of its own, shifted by a random
amount, in a circle. Two coordinates then meet with probability 1 / k if they are of different
blocks, and never if they are of one, which is all that the second moment asks for.
"""

import torch
from torch import Tensor

from helpers.projection import matrices

_NARROWEST = 2048
"""Blocks narrower than this cost more in calls than in additions; it is a part of what a seed
means."""


class Sketch:
    """A random linear map from `size` numbers to `width`, whose matrix has one entry in each row.

    `stream` is as in `matrices.generator`; the signs have the dtype and device of `like`.
    """

    def __init__(self, size: int, width: int, stream: tuple[int, ...], like: Tensor) -> None:
        drawn = matrices.generator(stream)
        self.size, self.width = size, width
        self.shifts = drawn.integers(0, width, -(-size // width)).tolist()
        self.signs = torch.from_numpy(matrices.signs(size, drawn)).to(like.device, like.dtype)

    def __call__(self, values: Tensor) -> Tensor:
        """Map `(..., size)` to `(..., width)`, in the dtype of the signs."""
        result = self.signs.new_zeros(*values.shape[:-1], 2 * self.width)
        self.add(values.to(self.signs.dtype), result)
        return wrapped(result)

    def places(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return where coordinates go, and their signs, both of the shape of `index`."""
        shifts = torch.tensor(self.shifts, device=index.device)
        return (index + shifts[index // self.width]) % self.width, self.signs[index]

    def add(self, values: Tensor, out: Tensor) -> None:
        """Add what `(..., size)` becomes to `(..., 2 * width)`, where a shift needs no wrapping."""
        for block, shift in enumerate(self.shifts):
            start = block * self.width
            piece = values[..., start : start + self.width]
            signs = self.signs[start : start + self.width]
            out[..., shift : shift + piece.shape[-1]].addcmul_(piece, signs)


class Total:
    """Features `(count, k)` like `like`, as parameters are added to them, one after the other."""

    def __init__(self, count: int, k: int, like: Tensor) -> None:
        self.k = k
        self.width = k * max(1, _NARROWEST // k)
        self.sums = like.new_zeros(count, 2 * self.width)

    def add(self, values: Tensor, stream: tuple[int, ...], rows: slice = slice(None)) -> None:
        """Add `(b, n)` numbers of the samples in `rows`, by a sketch of that stream."""
        sketch = Sketch(values.shape[1], self.width, stream, self.sums)
        sketch.add(values.to(self.sums.dtype), self.sums[rows])

    def features(self, stream: tuple[int, ...]) -> Tensor:
        """Return `(B, k)`; the stream folds what was kept wider than k."""
        sums = wrapped(self.sums)
        return sums if self.width == self.k else Sketch(self.width, self.k, stream, sums)(sums)


def wrapped(sums: Tensor) -> Tensor:
    """Close the circle: `(..., 2 * width)` to `(..., width)`."""
    first, second = sums.chunk(2, dim=-1)
    return first + second
