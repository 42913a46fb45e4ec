"""Random matrices `(P, k)`: dense ones, and sparse ones with an entry -1 or 1 in each row.

A sparse matrix keeps inner products with the same expectation and second moment of the error as one
full of random signs (Weinberger et al., arXiv:0902.2206), at one addition for each coordinate.

Positions drawn one by one would be scattered all over memory. So coordinates are split into blocks
as long as the result, and each block is added with its own signs and a random cyclic shift. Two
coordinates then collide with probability 1 / k if they are in different blocks, and never if in the
same one, which is all that the second moment needs.
"""

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
        rng = generator(stream)
        self.size, self.width = size, width
        self.shifts = rng.integers(0, width, -(-size // width)).tolist()
        self.signs = torch.from_numpy(signs(size, rng)).to(like.device, like.dtype)

    def __call__(self, values: Tensor) -> Tensor:
        """Map `(..., size)` to `(..., width)`, in the dtype of the signs."""
        result = self.signs.new_zeros(*values.shape[:-1], 2 * self.width)
        self.add(values.to(self.signs.dtype), result)
        return wrapped(result)

    def positions(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return where coordinates go, and their signs, both of the shape of `index`."""
        shifts = torch.tensor(self.shifts, device=index.device)
        return (index + shifts[index // self.width]) % self.width, self.signs[index]

    def add(self, values: Tensor, out: Tensor) -> None:
        """Add the sketch of `(..., size)` to `(..., 2 * width)`, where shifts need no wrapping."""
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
        """Return `(B, k)`; a sketch of that stream folds wider sums."""
        sums = wrapped(self.sums)
        return sums if self.width == self.k else Sketch(self.width, self.k, stream, sums)(sums)


def wrapped(sums: Tensor) -> Tensor:
    """Wrap around: `(..., 2 * width)` to `(..., width)`."""
    first, second = sums.chunk(2, dim=-1)
    return first + second


def product(tensors: Sequence[Tensor], k: int, like: Tensor, stream: tuple[int, ...]) -> Tensor:
    """Multiply gradients by a dense matrix of random signs: `(B, k)`, like `like`."""
    features, block = like.new_zeros(len(tensors[0]), k), 0
    for tensor in tensors:
        # Not flatten(1), which fails for zero-dimensional parameters.
        flat = tensor.detach().reshape(len(tensor), tensor.shape[1:].numel())
        for rows in flat.split(max(1, BLOCK // k), dim=1):
            entries = signs(rows.shape[1] * k, generator((*stream, block)))
            features.addmm_(rows.to(like), torch.from_numpy(entries).to(like).view(-1, k))
            block += 1
    return features.div_(k**0.5)


def generator(stream: tuple[int, ...]) -> np.random.Generator:
    """Make the generator of one random stream."""
    seed, *key = stream  # hashed to 128 bits; torch.Generator reads 32 bits of a seed
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def signs(count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw -1 and 1, each with probability one half: `(count,)`, int8."""
    bits = np.frombuffer(rng.bytes(-(-count // 8)), dtype=np.uint8)
    return np.unpackbits(bits, count=count).view(np.int8) * 2 - 1
