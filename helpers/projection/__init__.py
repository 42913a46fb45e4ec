"""Random projection of per-sample gradients: `(B, P)` to `(B, k)`, inner products nearly kept.

By the lemma of Johnson and Lindenstrauss (1984), a random matrix R of shape `(P, k)`, whose entries
have mean 0 and variance 1, keeps the inner product of any two gradients x and y up to an error of
order `|x| |y| / sqrt(k)`: `E[<xR, yR>] / k = <x, y>`. TRAK (Park et al. 2023, arXiv:2303.14186,
Section 3) works on such features.

Four kinds: `"rademacher"` and `"normal"` are such matrices, and cost B x P x k; `"sparse"` has one
entry in each row, for the same error at B x P (`helpers.projection.sketches`); `"factored"` does
not even form the gradients of large layers, for a somewhat larger error
(`helpers.projection.factors`).
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from helpers.gradient_computers import AbstractGradientComputer, FunctionalGradientComputer, Given
from helpers.layers.layer_call import dense
from helpers.layers.per_sample import PerSampleGradients
from helpers.projection import matrices
from helpers.projection.factors import Map
from helpers.projection.sketches import Total
from helpers.transforms import checks
from helpers.transforms.batches import Batch
from helpers.transforms.numbers import check_count

KINDS = (*matrices.KINDS, "sparse", "factored")
_SPARSE, _FACTORED, _FOLD = range(3)  # tell random streams apart


def project(
    grads: dict[str, Tensor], k: int, *, kind: str = "rademacher", seed: int = 0, model_id: int = 0
) -> Tensor:
    """Project per-sample gradients to k numbers for each sample.

    The random matrix is made block by block and never held whole. Its numbers depend on `kind`,
    `seed`, `model_id`, k and the parameters' shapes in their order, and on nothing else: not on
    the batch, the device, or what was drawn before.

    Args:
        grads: `{name: (B, *shape)}`, floating point.
        k: How many numbers a sample keeps, at least 1.
        kind: `"rademacher"`, entries -1 and 1; `"normal"`, entries from a standard normal; or
            `"sparse"`, one entry -1 or 1 in each row, whose cost does not grow with k.
        seed: A whole number, at least 0.
        model_id: Which model of an ensemble the gradients are of, at least 0: each one has a
            random matrix of its own.

    Returns:
        `(B, k)`, scaled so that inner products have the expectation that they had; float64 for
        float64 gradients, else float32, since half precision would overflow in sums over P.

    Raises:
        TypeError: A tensor is not floating point, or not dense.
        ValueError: It is empty or its batch sizes differ, k is below 1, `kind` is unknown or
            `"factored"`, or `seed` or `model_id` is no whole number, at least 0.
    """
    _check(k, kind, seed=seed, model_id=model_id)
    _check_grads(grads)
    if kind == "factored":
        raise ValueError(
            "kind 'factored' is for project_batches: given gradients have been formed already"
        )
    double = any(tensor.dtype == torch.float64 for tensor in grads.values())
    dtype = torch.float64 if double else torch.float32
    if kind in matrices.KINDS:
        return matrices.product(grads, k, dtype, kind, seed, model_id)
    first = next(iter(grads.values()))
    total = Total(len(first), k, torch.empty(0, dtype=dtype, device=first.device))
    for index, tensor in enumerate(grads.values()):
        flat = tensor.detach().reshape(len(tensor), tensor.shape[1:].numel())
        total.add(flat, (seed, model_id, _SPARSE, index))
    return total.features((seed, model_id, _FOLD))


def project_batches(
    computer: AbstractGradientComputer,
    batches: Iterable[Given],
    k: int,
    *,
    kind: str = "rademacher",
    seed: int = 0,
    model_id: int = 0,
) -> Tensor:
    """Compute gradients batch by batch and keep of each only its projection.

    So the features of N samples cost the memory of one batch of gradients, B x P numbers, and
    N x k for the result; never N x P. With `kind="factored"` and a `FunctionalGradientComputer`
    not even B x P: gradients of large linear layers, convolutions and embeddings are projected by
    their factors, and are not formed.

    Args:
        computer: What computes the gradients.
        batches: Batches that the computer takes, for example a `DataLoader`.
        k: As in `project`, like all that follows.
        kind: `"rademacher"`, `"normal"`, `"sparse"`, or `"factored"`, which keeps of a parameter's
            gradient a matrix of at most `helpers.projection.factors.LARGEST` entries, and then
            does as `"sparse"`; the computer changes its features by rounding alone.
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
    _check(k, kind, seed=seed, model_id=model_id)
    features = []
    for batch in batches:
        if kind == "factored":
            features.append(_factored(computer, batch, k, (seed, model_id)))
        else:  # no name for the gradients, which would keep them beside the next ones
            compute = computer.compute_per_sample_grad
            features.append(project(compute(batch), k, kind=kind, seed=seed, model_id=model_id))
    if not features:
        raise ValueError("batches must hold a batch at least, got none")
    return torch.cat(features)


@torch.inference_mode(False)
def _factored(
    computer: AbstractGradientComputer, batch: Given, k: int, stream: tuple[int, int]
) -> Tensor:
    """Compute the features of one batch, from factors where they are known."""
    if isinstance(computer, FunctionalGradientComputer):
        params, chunks = computer.watch(batch)
    else:
        grads = computer.compute_per_sample_grad(batch)
        _check_grads(grads)
        params = {name: tensor.new_empty(tensor.shape[1:]) for name, tensor in grads.items()}
        calls = {name: [dense(tensor)] for name, tensor in grads.items()}
        chunks = [(slice(None), PerSampleGradients(calls))]
    if not params:
        raise ValueError("the computer must have a parameter to differentiate, got none")
    double = torch.float64 in (computer.dtype, *(tensor.dtype for tensor in params.values()))
    device = next(iter(params.values())).device
    like = torch.empty(0, dtype=torch.float64 if double else torch.float32, device=device)
    total = Total(len(Batch(batch=batch)), k, like)
    maps = {
        name: Map(tensor.shape, (*stream, _FACTORED, index), like)
        for index, (name, tensor) in enumerate(params.items())
    }
    for rows, found in chunks:
        for name, each in maps.items():
            each.add(found, name, total, rows)
        del found  # or it would lie beside that of the next chunk
    return total.features((*stream, _FOLD)).to(computer.device)


def _check_grads(grads: dict[str, Tensor]) -> None:
    """Raise TypeError or ValueError unless gradients can be projected."""
    if not grads:
        raise ValueError("grads must hold a parameter at least, got none")
    for name, tensor in grads.items():
        checks.check_batch(name, tensor)
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}")
        if tensor.layout is not torch.strided:
            raise TypeError(f"{name} must be dense, got {tensor.layout}: .to_dense() makes it so")
    Batch(**grads)  # which compares their sizes


def _check(k: int, kind: str, **numbers: int) -> None:
    """Raise ValueError unless the options are known and in their ranges."""
    check_count("k", k)
    if kind not in KINDS:
        *others, last = map(repr, KINDS)
        raise ValueError(f"kind must be {', '.join(others)} or {last}, got {kind!r}")
    for name, number in numbers.items():
        check_count(name, number, least=0)
