"""Random projection of per-sample gradients, `(B, P)` to `(B, k)`, nearly keeping inner products.

By the lemma of Johnson and Lindenstrauss (1984), a random matrix `(P, k)` keeps inner products of
gradients x and y up to an error of order `|x| |y| / sqrt(k)`. Lesson 5b shows it with a dense
matrix. There are three kinds:

- `"rademacher"`: a dense matrix of random signs, at the cost of B x P x k;
- `"sparse"`: one nonzero entry a row, with the same error at B x P (`helpers.projection.sketches`);
- `"factored"`: gradients of large layers are not even formed (`helpers.projection.factors`).
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from helpers.gradient_computers import (
    AbstractGradientComputer,
    BatchLike,
    FunctionalGradientComputer,
)
from helpers.layers.layer_call import LayerCall, dense
from helpers.layers.per_sample import PerSampleGradients
from helpers.numbers import check_count
from helpers.projection.factors import Map
from helpers.projection.sketches import Total, flat, product
from helpers.transforms import checks
from helpers.transforms.batches import Batch

KINDS = ("rademacher", "sparse", "factored")
# Each draws from random streams of its own.
_SPARSE = 0
_FACTORED = 1
_FOLD = 2


def project(
    grads: dict[str, Tensor], k: int, *, kind: str = "rademacher", seed: int = 0, model_id: int = 0
) -> Tensor:
    """Project per-sample gradients to k numbers for each sample.

    The random numbers depend on the options and the parameters' shapes in their order, and on
    nothing else: not on the batch, the device, or what was drawn before.

    Args:
        grads: `{name: (B, *shape)}`, floating point.
        k: How many numbers a sample keeps, at least 1.
        kind: `"rademacher"` or `"sparse"`.
        seed: A whole number, at least 0.
        model_id: Which model of an ensemble this is, at least 0; each has its own matrix.

    Returns:
        `(B, k)`, scaled so that inner products are right on average; float64 for
        float64 gradients, else float32, since half precision would overflow in sums over P.

    Raises:
        TypeError: A gradient is not a tensor, not floating point, or not dense.
        ValueError: There is no gradient, batch sizes differ, or an option is out of its range.
    """
    _check(k, kind, seed=seed, model_id=model_id)
    _check_grads(grads)
    if kind == "factored":
        raise ValueError("kind 'factored' is for project_batches: these gradients are formed")
    tensors = list(grads.values())
    like = _like([tensor.dtype for tensor in tensors], tensors[0].device)
    if kind == "rademacher":
        return product(tensors, k, like, (seed, model_id))
    total = Total(len(tensors[0]), k, like)
    for index, tensor in enumerate(tensors):
        total.add(flat(tensor), (seed, model_id, _SPARSE, index))
    return total.features((seed, model_id, _FOLD))


def project_batches(
    computer: AbstractGradientComputer,
    batches: Iterable[BatchLike],
    k: int,
    *,
    kind: str = "rademacher",
    seed: int = 0,
    model_id: int = 0,
) -> Tensor:
    """Compute gradients batch by batch, and keep only their projection.

    The memory is that of one batch, B x P numbers, and N x k for the result. With `"factored"` and
    a `FunctionalGradientComputer` gradients of large linear layers, convolutions and embeddings
    are not formed.

    Args:
        computer: What computes the gradients.
        batches: Batches that the computer takes, for example a `DataLoader`.
        k: As in `project`; so are the other options.
        kind: Or `"factored"`, which reduces gradients that are matrices to at most
            `factors.LARGEST` numbers each, and then proceeds like `"sparse"`.
        seed: A whole number, at least 0.
        model_id: Which model of an ensemble this is.

    Returns:
        `(N, k)`, in the order of the batches: what `project` gives for all gradients at once,
        except for `"factored"`, which it refuses.

    Raises:
        TypeError: As in `project` and `compute_per_sample_grad`.
        ValueError: As above, or there is no batch.
    """
    _check(k, kind, seed=seed, model_id=model_id)
    features = []
    for batch in batches:
        if kind == "factored":
            features.append(_factored(computer, batch, k, (seed, model_id)))
            continue
        grads = computer.compute_per_sample_grad(batch)
        features.append(project(grads, k, kind=kind, seed=seed, model_id=model_id))
        del grads  # free them before the next batch
    if not features:
        raise ValueError("batches must hold at least 1 batch, got none")
    return torch.cat(features)


@torch.inference_mode(False)
def _factored(
    computer: AbstractGradientComputer, batch: BatchLike, k: int, stream: tuple[int, int]
) -> Tensor:
    """Compute the features of one batch, from factors where they are known."""
    chunks: Iterable[tuple[slice, PerSampleGradients]]
    if isinstance(computer, FunctionalGradientComputer):
        params, chunks = computer.watch(batch)
    else:
        grads = computer.compute_per_sample_grad(batch)
        _check_grads(grads)
        params = {}
        calls: dict[str, list[LayerCall]] = {}
        for name, tensor in grads.items():
            params[name] = tensor.new_empty(tensor.shape[1:])  # of which only the shape counts
            calls[name] = [dense(tensor)]
        chunks = [(slice(None), PerSampleGradients(calls))]
    if not params:
        raise ValueError("the computer must have a parameter to differentiate, got none")
    dtypes = [tensor.dtype for tensor in params.values()]
    device = next(iter(params.values())).device
    like = _like([computer.dtype, *dtypes], device)
    total = Total(len(Batch(batch=batch)), k, like)
    maps = {}
    for index, (name, tensor) in enumerate(params.items()):
        maps[name] = Map(tensor.shape, (*stream, _FACTORED, index), like)
    for rows, sample_grads in chunks:
        for name, parameter_map in maps.items():
            parameter_map.add(sample_grads, name, total, rows)
        del sample_grads  # free them before the next chunk
    return total.features((*stream, _FOLD)).to(computer.device)


def _like(dtypes: Sequence[torch.dtype], device: torch.device) -> Tensor:
    """Make an empty tensor of the dtype and device of the features, from dtypes of gradients."""
    # Sums over P in half precision would overflow.
    dtype = torch.float64 if torch.float64 in dtypes else torch.float32
    return torch.empty(0, dtype=dtype, device=device)


def _check_grads(grads: dict[str, Tensor]) -> None:
    if not grads:
        raise ValueError("grads must hold at least 1 parameter, got none")
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
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    for name, number in numbers.items():
        check_count(name, number, least=0)
