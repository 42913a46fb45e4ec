"""Products of vectors with the Fisher and Gauss-Newton matrices of a model.

Let J_i be the Jacobian `(Y, P)` of the outputs for sample i. Each matrix is a mean over samples:

- the generalized Gauss-Newton matrix averages `J_i^T H_i J_i`, where H_i is the Hessian of the
  loss of sample i with respect to its outputs;
- the Fisher matrix of a classifier averages `J_i^T (diag(p_i) - p_i p_i^T) J_i`, where p_i are its
  own probabilities. It needs no labels, and is the Gauss-Newton matrix of cross-entropy.

A vector is a dictionary `{name: parameter.shape}`; if parameters are missing, only the block of
those present is used. No product forms a matrix: it goes from the parameters to the outputs,
`J_i v`, and back, `J_i^T u_i` summed over the samples (Schraudolph 2002, "Fast Curvature
Matrix-Vector Products for Second-Order Gradient Descent"). If torch cannot transform the model,
Jacobians are used, one sample at a time.

The model is restored. Refused: what `helpers.gradients` refuses, an empty batch, and a vector that
does not fit the parameters.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vjp, vmap

from helpers.curvature import passes
from helpers.curvature.passes import Vector
from helpers.numbers import check_count
from helpers.transforms import batches, checks, fallback
from helpers.transforms.batches import Tree

LossFn = Callable[[Any, Any], Tensor]

_LARGEST = 2**33  # bytes of a matrix, 8 GiB


@torch.inference_mode(False)
def fisher_product(
    model: nn.Module, data: Tree, vector: Vector, *, chunk_size: int | None = None
) -> Vector:
    """Multiply a vector by the Fisher matrix of a classifier.

    Args:
        model: Any module that maps `(B, ...)` to logits `(B, Y)`, Y at least 2. For a single
            logit or a regression, use `gauss_newton_product` with
            `binary_cross_entropy_with_logits` or half the squared error, whose Gauss-Newton matrix
            is the Fisher matrix (Martens 2014, arXiv:1412.1193, Section 9.2).
        data: `(B, ...)`, or a pytree of such tensors, B at least 1.
        vector: `{name: parameter.shape}`.
        chunk_size: How many samples to take at a time; `None` means all. It bounds the memory.

    Returns:
        `{name: parameter.shape}`, detached.

    Raises:
        TypeError: `model` is not a module, `data` is not a pytree of tensors, or `vector` is not a
            dictionary of tensors.
        ValueError: One of the refusals of the module, outputs that are not `(B, Y)` with Y at least
            2, or a `chunk_size` below 1.

    Example:
        >>> model = nn.Linear(1, 2, bias=False)  # two logits, w_0 x and w_1 x
        >>> _ = nn.init.zeros_(model.weight)  # so both classes have the probability 1/2
        >>> data, vector = torch.tensor([[2.0]]), {"weight": torch.tensor([[1.0], [0.0]])}
        >>> fisher_product(model, data, vector)["weight"].flatten()  # x^2 p (1 - p)
        tensor([ 1., -1.])
    """

    def apply_hessian(logits: Tensor, pushed: Tensor, *_: Tensor) -> Tensor:
        if logits.dim() != 1 or len(logits) == 1:
            raise ValueError(
                f"the model must return at least two logits, got {(1, *logits.shape)} for a batch "
                "of one: for one logit, use gauss_newton_product"
            )
        p = logits.softmax(dim=0)
        return p * (pushed - p @ pushed)

    checks.check_model(model)
    return passes.mean(model, batches.take(model, data=data), vector, chunk_size, apply_hessian)


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
    """Multiply a vector by the generalized Gauss-Newton matrix of a loss.

    `loss_fn(predictions, targets)`, given a batch of one, returns a scalar; targets are
    `(B, ...)`, or a pytree of such tensors, or `None` where the loss needs none. The rest is as in
    `fisher_product`, but predictions may be any `(B, ...)`. `vector` is required.

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

    def apply_hessian(prediction: Tensor, pushed: Tensor, *sample: Tensor) -> Tensor:
        _, target = batch.of_one(sample)
        slope = grad(lambda z: checks.check_scalar(loss_fn(z.unsqueeze(0), target)))
        # A Hessian is symmetric; torch's `jvp` fails for the gradient of mse_loss.
        return vjp(slope, prediction)[1](pushed)[0]

    return passes.mean(model, batch, vector, chunk_size, apply_hessian)


@torch.inference_mode(False)
@fallback.warning_once
def matrix(product: Callable[[Vector], Vector], like: Vector, *, chunk_size: int = 32) -> Tensor:
    """Form the matrix of a product, for small P.

    Args:
        product: Maps a vector `{name: shape}` to one with the same names and shapes, linearly,
            for example `functools.partial(fisher_product, model, data)`.
        like: `{name: shape}`, tensors such as the parameters: their order is that of the P rows
            and columns, each tensor flattened, as in `helpers.jacobians`.
        chunk_size: How many columns to compute at a time. It bounds the memory.

    Returns:
        `(P, P)`, detached, in the widest dtype of `like`.

    Raises:
        TypeError: `like`, or what the product returns, is not a dictionary of tensors.
        ValueError: It is empty, the matrix would take more than 8 GiB, the product returns other
            names or shapes, or `chunk_size` is not a positive integer.

    Example:
        >>> double = lambda vector: {name: 2 * tensor for name, tensor in vector.items()}
        >>> matrix(double, {"weight": torch.ones(1, 2)})
        tensor([[2., 0.],
                [0., 2.]])
    """
    passes.check_dictionary("like", like)
    check_count("chunk_size", chunk_size)
    sizes = [tensor.numel() for tensor in like.values()]
    if not sum(sizes):
        raise ValueError("like must hold at least 1 parameter, got none")
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in like.values()))
    if (size := sum(sizes) ** 2 * dtype.itemsize) > _LARGEST:
        raise ValueError(
            f"the matrix of {sum(sizes):,} parameters would take {size / 1e9:,.0f} GB: multiply "
            "vectors by it instead, or name fewer parameters in like"
        )

    def column(flat: Tensor) -> Tensor:
        blocks = zip(like.items(), flat.split(sizes), strict=True)
        returned = product({n: block.reshape(t.shape).to(t.dtype) for (n, t), block in blocks})
        passes.check_dictionary("what the product returns", returned)
        got, expected = ({n: tuple(t.shape) for n, t in v.items()} for v in (returned, like))
        if got != expected:
            raise ValueError(f"the product must return the shapes {expected}, got {got}")
        return torch.cat([returned[name].detach().reshape(-1) for name in like])

    basis = torch.eye(sum(sizes), dtype=dtype, device=next(iter(like.values())).device)
    try:
        return vmap(column, chunk_size=chunk_size)(basis).T
    except RuntimeError as error:
        if not fallback.leads_to_loop(error):
            raise
        return torch.stack([column(row) for row in basis], dim=1)
