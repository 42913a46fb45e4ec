"""Products of vectors with the Fisher, empirical Fisher and Gauss-Newton matrices of a model.

With J_i the Jacobian `(Y, P)` of the outputs for sample i, each is a mean over B samples:

- the Fisher matrix of a classifier, `J_i^T (diag(p_i) - p_i p_i^T) J_i`, where p_i are its own
  probabilities: no label occurs in it;
- the empirical Fisher matrix, `g_i g_i^T`, where g_i is the gradient of the loss of sample i;
- the generalised Gauss-Newton matrix, `J_i^T H_i J_i`, where H_i is the Hessian of the loss of
  sample i by its outputs.

For cross-entropy the first and the last are the same. The second is neither, whatever it is called
(Kunstner, Balles and Hennig 2019, arXiv:1905.12558).

A vector is a dictionary `{name: parameter.shape}`. Its names are the parameters that count: with a
part of them, the product is that of the block of the matrix that belongs to this part. The result
has the same names, shapes and dtypes, detached.

No product makes a matrix, and none a gradient of a sample: it goes from the parameters to the
outputs, `J_i v`, and back, `J_i^T u_i` summed over the samples (Schraudolph 2002, "Fast Curvature
Matrix-Vector Products for Second-Order Gradient Descent"). What torch cannot transform so goes by
Jacobians, a chunk at a time. `matrix` makes the matrix of any of them.

The model is put back as it was. Refused, each with one sentence: what `helpers.gradients` refuses,
an empty batch, and a vector that does not fit the parameters.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vjp, vmap
from tqdm import tqdm

from helpers import gradients
from helpers.curvature import passes
from helpers.curvature.parameter_vectors import Vector, check_dictionary, check_returned
from helpers.transforms import batches, checks, fallback
from helpers.transforms.batches import Tree
from helpers.transforms.numbers import check_count

LossFn = Callable[[Any, Any], Tensor]

_LARGEST = 2**33
"""Bytes of the largest matrix that is made, 8 GiB."""


@torch.inference_mode(False)
def fisher_product(
    model: nn.Module, data: Tree, vector: Vector, *, chunk_size: int | None = None
) -> Vector:
    """Multiply a vector with the Fisher matrix of a classifier.

    Args:
        model: Any module that maps `(B, ...)` to logits `(B, Y)`, Y at least 2. One logit may be a
            probability or a regression, which have other Fisher matrices: each is the Gauss-Newton
            matrix of its loss, `binary_cross_entropy_with_logits` or half the squared error
            (Martens 2014, arXiv:1412.1193, Section 9.2).
        data: `(B, ...)`, or a tree of such tensors, B at least 1.
        vector: `{name: parameter.shape}`.
        chunk_size: How many samples to take at a time; `None` means all. It bounds the memory.

    Returns:
        `{name: parameter.shape}`, detached.

    Raises:
        TypeError: `data` is no tree of tensors, or `vector` no dictionary of tensors.
        ValueError: One of the refusals of the module, or outputs that are not `(B, Y)` with Y at
            least 2.

    Example:
        >>> model = nn.Linear(1, 2, bias=False)  # two logits, w_0 x and w_1 x
        >>> _ = nn.init.zeros_(model.weight)  # so both classes have the probability 1/2
        >>> data, vector = torch.tensor([[2.0]]), {"weight": torch.tensor([[1.0], [0.0]])}
        >>> fisher_product(model, data, vector)["weight"].flatten()  # x^2 p (1 - p)
        tensor([ 1., -1.])
    """

    def weigh(logits: Tensor, pushed: Tensor, *_: Tensor) -> Tensor:
        if logits.dim() != 1:
            raise ValueError(
                f"the model must return logits (B, Y), got {(1, *logits.shape)} for a batch of one"
            )
        if len(logits) == 1:
            raise ValueError(
                "the model must return two logits at least, got (B, 1), whose softmax is 1: take "
                "gauss_newton_product with binary_cross_entropy_with_logits"
            )
        p = logits.softmax(dim=0)
        return p * (pushed - p @ pushed)

    checks.check_model(model)
    return passes.mean(model, batches.take(model, data=data), vector, chunk_size, weigh)


@torch.inference_mode(False)
def gauss_newton_product(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tree,
    targets: Tree = None,
    vector: Vector | None = None,
    *,
    chunk_size: int | None = None,
) -> Vector:
    """Multiply a vector with the generalised Gauss-Newton matrix of a loss.

    `loss_fn(predictions, targets)`, given a batch of one, returns a scalar; targets are
    `(B, ...)`, or a tree of such tensors, or `None` where the loss needs none. The rest is as in
    `fisher_product`, for predictions of any kind. The vector has to be given.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> data, targets = torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)
        >>> loss_fn = nn.functional.mse_loss  # its second derivative is 2
        >>> vector = {"weight": torch.ones(1, 1)}
        >>> gauss_newton_product(model, loss_fn, data, targets, vector)  # 2 (1 + 9) / 2
        {'weight': tensor([[10.]])}
    """
    checks.check_model(model)
    batch = batches.take(model, data=data, targets=targets)

    def weigh(prediction: Tensor, pushed: Tensor, *sample: Tensor) -> Tensor:
        _, target = batch.of_one(sample)
        slope = grad(lambda z: checks.check_scalar(loss_fn(z.unsqueeze(0), target)))
        # A Hessian is its own transpose; the `jvp` of torch fails for the slope of mse_loss.
        return vjp(slope, prediction)[1](pushed)[0]

    return passes.mean(model, batch, vector, chunk_size, weigh)


@torch.inference_mode(False)
def empirical_fisher_product(
    model: nn.Module,
    loss_fn: LossFn,
    data: Tree,
    targets: Tree = None,
    vector: Vector | None = None,
    *,
    chunk_size: int | None = None,
) -> Vector:
    """Multiply a vector with the empirical Fisher matrix, the mean of all `g_i g_i^T`.

    With labels that were drawn from the model's own probabilities in place of `targets`, its mean
    over the draws is the Fisher matrix. Arguments and refusals are those of `gauss_newton_product`.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.ones_(model.weight)
        >>> data, targets = torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)
        >>> loss_fn = nn.functional.mse_loss  # its gradients are 2 x^2, here 2 and 18
        >>> vector = {"weight": torch.ones(1, 1)}
        >>> empirical_fisher_product(model, loss_fn, data, targets, vector)  # (4 + 324) / 2
        {'weight': tensor([[164.]])}
    """
    checks.check_model(model)
    batch = batches.take(model, data=data, targets=targets)
    loss = functools.partial(gradients.sample_loss, loss_fn, batch)
    return passes.mean(model, batch, vector, chunk_size, lambda *_: None, loss)


@torch.inference_mode(False)
@fallback.warning_once
def matrix(product: Callable[[Vector], Vector], like: Vector, *, chunk_size: int = 32) -> Tensor:
    """Make the matrix of a product: for small P, and for an equation to be solved.

    Args:
        product: Maps a vector `{name: shape}` to one with the same names and shapes, linearly,
            for example `functools.partial(fisher_product, model, data)`.
        like: `{name: shape}`, tensors such as the parameters: their order is that of the P rows
            and columns, each tensor flattened, as in `helpers.jacobians`.
        chunk_size: How many columns to compute at a time. It bounds the memory.

    Returns:
        `(P, P)`, detached, in the widest dtype of `like`.

    Raises:
        TypeError: `like` is no dictionary of tensors.
        ValueError: It is empty, the matrix would take more than 8 GiB, the product returns other
            names or shapes, or `chunk_size` is no whole number, at least 1.

    Example:
        >>> double = lambda vector: {name: 2 * tensor for name, tensor in vector.items()}
        >>> matrix(double, {"weight": torch.ones(1, 2)})
        tensor([[2., 0.],
                [0., 2.]])
    """
    check_dictionary("like", like)
    check_count("chunk_size", chunk_size)
    sizes = [tensor.numel() for tensor in like.values()]
    if not sum(sizes):
        raise ValueError("like must hold a parameter at least, got none")
    dtypes = (tensor.dtype for tensor in like.values())
    first = next(iter(like.values())).detach()
    first = first.new_empty(0, dtype=functools.reduce(torch.promote_types, dtypes))
    size = sum(sizes)
    if size**2 * first.itemsize > _LARGEST:
        raise ValueError(
            f"the matrix of {size:,} parameters would take {size**2 * first.itemsize / 1e9:,.0f} "
            "GB: multiply vectors with it instead, or name fewer parameters in like"
        )
    result = first.new_empty(size, size)

    def column(flat: Tensor) -> Tensor:
        parts = zip(like.items(), flat.split(sizes), strict=True)
        returned = product({n: part.reshape(t.shape).to(t.dtype) for (n, t), part in parts})
        check_returned(returned, like)
        return torch.cat([returned[name].detach().reshape(-1) for name in like])

    starts = range(0, size, chunk_size)
    for start in tqdm(starts, desc="columns", leave=False, disable=len(starts) < 100):
        basis = first.new_zeros(min(chunk_size, size - start), size)
        basis.diagonal(start).fill_(1)
        try:
            columns = vmap(column)(basis)
        except RuntimeError as error:
            if not fallback.leads_to_loop(error):
                raise
            columns = torch.stack([column(row) for row in basis])
        result[:, start : start + chunk_size] = columns.T
    return result
