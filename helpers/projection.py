"""Random projection of per-sample gradients: `(B, P)` to `(B, k)`, inner products nearly kept.

By the lemma of Johnson and Lindenstrauss (1984), a random matrix R of shape `(P, k)`, whose entries
have mean 0 and variance 1, keeps the inner product of any two gradients x and y up to an error of
order `|x| |y| / sqrt(k)`: `E[<xR, yR>] / k = <x, y>`. TRAK (Park et al. 2023, arXiv:2303.14186,
Section 3) works on such features.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from helpers.gradient_computers import AbstractGradientComputer
from helpers.transforms import checks

KINDS = ("rademacher", "normal")
BLOCK = 2**21
"""Entries of the random matrix that exist at a time, 8 MiB of float32. They are a part of what a
seed means: with other blocks, the same seed would give other numbers."""


def project(
    grads: dict[str, Tensor],
    k: int,
    *,
    kind: str = "rademacher",
    seed: int = 0,
    model_id: int = 0,
) -> Tensor:
    """Project per-sample gradients to k numbers for each sample.

    The random matrix is made block by block and never held whole. Its numbers depend on `kind`,
    `seed`, `model_id`, k and the parameters' shapes in their order, and on nothing else: not on
    the batch, the device, or what was drawn before.

    Args:
        grads: `{name: (B, *shape)}`, floating point.
        k: How many numbers a sample keeps, at least 1.
        kind: `"rademacher"`, entries -1 and 1, or `"normal"`, entries from a standard normal.
        seed: A whole number, at least 0.
        model_id: Which model of an ensemble the gradients are of, at least 0: each one has a
            random matrix of its own.

    Returns:
        `(B, k)`, scaled by `1 / sqrt(k)`; float64 for float64 gradients, else float32, since half
        precision would overflow in sums over P.

    Raises:
        TypeError: `grads` is no dictionary of floating point tensors.
        ValueError: It is empty or its batch sizes differ, k is below 1, `kind` is unknown, or
            `seed` or `model_id` is no whole number, at least 0.
    """
    _check(grads, k, kind, seed=seed, model_id=model_id)
    first = next(iter(grads.values()))
    double = any(tensor.dtype == torch.float64 for tensor in grads.values())
    dtype = torch.float64 if double else torch.float32
    features = torch.zeros(len(first), k, dtype=dtype, device=first.device)
    block = 0
    for tensor in grads.values():
        # Not flatten(1), which a parameter without a dimension does not have.
        flat = tensor.detach().reshape(len(tensor), tensor.shape[1:].numel())
        for rows in flat.split(max(1, BLOCK // k), dim=1):
            # No name for the block, which would keep it while the next one is made.
            features.addmm_(
                rows.to(dtype),
                torch.from_numpy(_entries(rows.shape[1] * k, kind, (seed, model_id, block)))
                .to(first.device, dtype)
                .view(-1, k),
            )
            block += 1
    return features.div_(k**0.5)


def project_batches(
    computer: AbstractGradientComputer,
    batches: Iterable[Sequence[Tensor]],
    k: int,
    *,
    kind: str = "rademacher",
    seed: int = 0,
    model_id: int = 0,
) -> Tensor:
    """Compute gradients batch by batch and keep of each only its projection.

    So the features of N samples cost the memory of one batch of gradients, B x P numbers, and
    N x k for the result; never N x P.

    Args:
        computer: What computes the gradients.
        batches: Batches that the computer takes, for example a `DataLoader`.
        k: As in `project`, like all that follows.
        kind: `"rademacher"` or `"normal"`.
        seed: A whole number, at least 0.
        model_id: Which model of an ensemble this is.

    Returns:
        `(N, k)`, in the order of the batches: what `project` gives for all gradients at once.

    Raises:
        TypeError: As in `project` and `compute_per_sample_grad`.
        ValueError: As there, or there is no batch.

    Example:
        >>> from helpers.gradient_computers import FunctionalGradientComputer
        >>> from helpers.model_outputs import ImageClassificationModelOutput
        >>> model, task = torch.nn.Linear(3, 2), ImageClassificationModelOutput()
        >>> computer = FunctionalGradientComputer(model, task, 8, torch.float32, "cpu")
        >>> batches = [(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))] * 2
        >>> tuple(project_batches(computer, batches, k=5).shape)
        (8, 5)
    """
    features = [
        project(computer.compute_per_sample_grad(batch), k, kind=kind, seed=seed, model_id=model_id)
        for batch in batches
    ]
    if not features:
        raise ValueError("batches must hold a batch at least, got none")
    return torch.cat(features)


def _entries(count: int, kind: str, stream: tuple[int, int, int]) -> np.ndarray:
    """Draw entries of one block, from a random stream of its own.

    Two streams are the same only if seed, model and block all are: NumPy's `SeedSequence` hashes
    the three to 128 bits. A sum such as `seed + 1000 * block + 100_000 * model` does not keep them
    apart, and a `torch.Generator` of the CPU would read no more than 32 bits of any seed.

    Args:
        count: How many.
        kind: One of `KINDS`.
        stream: Seed, model, block.

    Returns:
        `(count,)`: int8 for `"rademacher"`, float32 for `"normal"`.
    """
    seed, *key = stream
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
    if kind == "normal":
        return generator.standard_normal(count, dtype=np.float32)
    drawn = np.frombuffer(generator.bytes(-(-count // 8)), dtype=np.uint8)
    return np.unpackbits(drawn, count=count).view(np.int8) * 2 - 1


def _check(grads: dict[str, Tensor], k: int, kind: str, **numbers: int) -> None:
    """Refuse what cannot be projected, with one sentence."""
    if not isinstance(grads, dict):
        raise TypeError(
            f"grads must be a dictionary {{name: (B, *shape)}}, got {type(grads).__name__}"
        )
    if not grads:
        raise ValueError("grads must hold a parameter at least, got none")
    checks.check_batch(**grads)
    for name, tensor in grads.items():
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}")
    if not _is_count(k, 1):
        raise ValueError(f"k must be a whole number, at least 1, got {k!r}")
    if kind not in KINDS:
        raise ValueError(f"kind must be {' or '.join(map(repr, KINDS))}, got {kind!r}")
    for name, number in numbers.items():
        if not _is_count(number, 0):
            raise ValueError(f"{name} must be a whole number, at least 0, got {number!r}")


def _is_count(number: int, least: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= least
