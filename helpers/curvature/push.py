"""Jacobian-vector products from backward passes alone."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import debug_unwrap, vjp


def push(
    outputs: Tensor, pull: Callable[[Tensor], tuple[dict[str, Tensor]]], vector: dict[str, Tensor]
) -> Tensor:
    """Multiply a Jacobian by a vector, given the `vjp` of a function."""
    # `pull` is linear, so its own `vjp` is the product. torch's `jvp` is not the transpose of every
    # backward pass: it changes an embedding's padding and treats custom operators as constants.
    return vjp(pull, torch.zeros_like(outputs))[1]((vector,))[0]


def check_pushed(
    pushed: Tensor, cotangents: Tensor, pulled: dict[str, Tensor], vector: dict[str, Tensor]
) -> None:
    """Check that a push and a pull belong to one Jacobian: `u (J v)` equals `(u J) v`.

    This fails if a backward pass cannot be differentiated, or if a gradient hook is not linear.

    Raises:
        NotImplementedError: The two differ.
    """
    flat_pulled, flat_vector = (
        torch.cat([tensors[name].flatten() for name in vector]) for tensors in (pulled, vector)
    )
    forward, backward = pushed.flatten().dot(cotangents.flatten()), flat_pulled.dot(flat_vector)
    sizes = pushed.norm() * cotangents.norm() + flat_pulled.norm() * flat_vector.norm()
    agree = (forward - backward).abs() <= torch.finfo(forward.dtype).eps ** 0.5 * sizes
    if not debug_unwrap(agree).all():  # under `vmap`, there may be many vectors
        raise NotImplementedError(
            "torch.func uses different Jacobians forward and backward, because of a gradient "
            "hook, scripted code, or a backward that is not differentiable"
        )
