"""Random matrices `(P, k)` for projection, made block by block and never held whole."""

import numpy as np
import torch
from torch import Tensor

KINDS = ("rademacher", "normal")
BLOCK = 2**21
"""Entries of the random matrix that exist at a time, 8 MiB of float32. They are a part of what a
seed means: with other blocks, the same seed would give other numbers."""


def product(
    grads: dict[str, Tensor], k: int, dtype: torch.dtype, kind: str, seed: int, model_id: int
) -> Tensor:
    """Multiply gradients by a random matrix: `(B, k)`, scaled by `1 / sqrt(k)`."""
    first = next(iter(grads.values()))
    features = torch.zeros(len(first), k, dtype=dtype, device=first.device)
    block = 0
    for tensor in grads.values():
        # Not flatten(1), which a parameter without a dimension does not have.
        flat = tensor.detach().reshape(len(tensor), tensor.shape[1:].numel())
        for rows in flat.split(max(1, BLOCK // k), dim=1):
            # No name for the block, which would keep it while the next one is made.
            features.addmm_(
                rows.to(dtype),
                torch.from_numpy(entries(rows.shape[1] * k, kind, (seed, model_id, block)))
                .to(first.device, dtype)
                .view(-1, k),
            )
            block += 1
    return features.div_(k**0.5)


def entries(count: int, kind: str, stream: tuple[int, ...]) -> np.ndarray:
    """Draw entries of one block, `(count,)`, from a stream of its own; signs are int8."""
    drawn = generator(stream)
    normal = kind == "normal"
    return drawn.standard_normal(count, dtype=np.float32) if normal else signs(count, drawn)


def generator(stream: tuple[int, ...]) -> np.random.Generator:
    """Make the generator of one random stream.

    Two streams are the same only if all their numbers are: NumPy's `SeedSequence` hashes them to
    128 bits. A sum such as `seed + 1000 * block + 100_000 * model` does not keep them apart, and a
    `torch.Generator` of the CPU would read no more than 32 bits of any seed.
    """
    seed, *key = stream
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def signs(count: int, drawn: np.random.Generator) -> np.ndarray:
    """Draw -1 and 1, each with probability one half: `(count,)`, int8."""
    bits = np.frombuffer(drawn.bytes(-(-count // 8)), dtype=np.uint8)
    return np.unpackbits(bits, count=count).view(np.int8) * 2 - 1
