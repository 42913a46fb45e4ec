"""Random matrices `(P, k)`: dense ones, and sparse ones with an entry -1 or 1 in each row.

A sparse matrix keeps inner products with the same expectation and second moment of the error as one
full of random signs (Weinberger et al., arXiv:0902.2206), at one addition for each coordinate.

Positions drawn one by one would be scattered all over memory. So coordinates are split into blocks
as long as the result, and each block is added with its own signs and a random cyclic shift. Two
coordinates then collide with probability 1 / k if they are in different blocks, and never if in the
same one, which is all that the second moment needs.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

BLOCK = 2**21
"""Entries of a dense matrix held at a time, 8 MiB of float32; it changes what seeds mean."""
_NARROWEST = 2048
"""Narrower blocks cost more in calls than in additions; it changes what seeds mean."""


class Sketch:
    """A sparse matrix from `size` numbers to `width`; its signs are like `like`."""

    def __init__(self, size: int, width: int, stream: tuple[int, ...], like: Tensor) -> None:
        self.size = size
        self.width = width
        rng = generator(stream)
        blocks = math.ceil(size / width)
        self.shifts = rng.integers(0, width, blocks).tolist()
        self.signs = torch.from_numpy(signs(size, rng)).to(like.device, like.dtype)

    def __call__(self, values: Tensor) -> Tensor:
        """Map `(..., size)` to `(..., width)`, in the dtype of the signs."""
        result = self.signs.new_zeros((*values.shape[:-1], 2 * self.width))
        self.add(values.to(self.signs.dtype), result)
        return wrapped(result)

    def positions(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return where coordinates go, and their signs, both of the shape of `index`."""
        shifts = torch.tensor(self.shifts, device=index.device)
        block = index // self.width
        return (index + shifts[block]) % self.width, self.signs[index]

    def add(self, values: Tensor, out: Tensor) -> None:
        """Add the sketch of `(..., size)` to `(..., 2 * width)`, where shifts need no wrapping."""
        for block, shift in enumerate(self.shifts):
            start = block * self.width
            piece = values[..., start : start + self.width]  # the last block may be shorter
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
        """Return `(B, k)`; a sketch of that stream folds wider sums."""
        sums = wrapped(self.sums)
        if self.width == self.k:
            return sums
        fold = Sketch(self.width, self.k, stream, like=sums)
        return fold(sums)


def wrapped(sums: Tensor) -> Tensor:
    """Wrap around: `(..., 2 * width)` to `(..., width)`."""
    first, second = sums.chunk(2, dim=-1)
    return first + second


def product(tensors: Sequence[Tensor], k: int, like: Tensor, stream: tuple[int, ...]) -> Tensor:
    """Multiply gradients by a dense matrix of random signs: `(B, k)`, like `like`."""
    features = like.new_zeros(len(tensors[0]), k)
    block = 0  # each draws from a stream of its own, so that they never exist together
    for tensor in tensors:
        for columns in flat(tensor).split(max(1, BLOCK // k), dim=1):
            # No name for the entries, so that they are freed before the next block.
            rng = generator((*stream, block))
            features.addmm_(columns.to(like), _dense_matrix(columns.shape[1], k, rng, like))
            block += 1
    # An inner product is a sum over k columns, of which each has the right mean.
    return features.div_(k**0.5)


def _dense_matrix(size: int, k: int, rng: np.random.Generator, like: Tensor) -> Tensor:
    """Draw a matrix of random signs, `(size, k)`, like `like`."""
    return torch.from_numpy(signs(size * k, rng)).to(like).view(size, k)


def flat(gradients: Tensor) -> Tensor:
    """Return gradients `(B, *shape)` as `(B, P)`, detached."""
    # Not flatten(1), which fails for zero-dimensional parameters.
    return gradients.detach().reshape(len(gradients), gradients.shape[1:].numel())


def generator(stream: tuple[int, ...]) -> np.random.Generator:
    """Make the generator of one random stream."""
    # Hashed to 128 bits; torch.Generator reads 32 bits of a seed.
    sequence = np.random.SeedSequence(stream[0], spawn_key=stream[1:])
    return np.random.default_rng(sequence)


def signs(count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw -1 and 1, each with probability one half: `(count,)`, int8."""
    octets = np.frombuffer(rng.bytes(math.ceil(count / 8)), dtype=np.uint8)
    bits = np.unpackbits(octets, count=count)  # 0 and 1
    return bits.view(np.int8) * 2 - 1
