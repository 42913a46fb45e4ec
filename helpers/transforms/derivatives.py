"""Derivatives by backwards: of a scalar function of each sample in a loop, and of Jacobians."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.func import debug_unwrap, vjp

from helpers.transforms import samples
from helpers.transforms.call import graph

# How torch of several versions says that a checkpoint is reentrant.
_REENTRANT = ("is incompatible with .grad()", "is not compatible with .grad()")


def by_loop(
    function: Callable[..., Tensor],
    model: nn.Module,
    params: dict[str, Tensor],
    batch: tuple[Tensor, ...],
    *,
    dtype: torch.dtype | None = None,
    randomness: str = "error",
) -> dict[str, Tensor]:
    """Differentiate a scalar function of each sample by parameters, as `samples.loop` runs it.

    Returns `{name: (B, *shape)}`, detached, in `dtype` or each parameter's own; zeros where the
    function does not reach a parameter.
    """
    grads = {
        name: tensor.new_zeros((len(batch[0]), *tensor.shape), dtype=dtype, requires_grad=False)
        for name, tensor in params.items()
    }
    if not grads or not len(batch[0]):
        return grads
    own = dict(model.named_parameters())
    leaves = [own[name] for name in grads]

    every = {*grads, *(name for name, each in own.items() if each.requires_grad)}
    names = set(grads)

    def differentiate(*args: Any) -> list[Tensor]:
        found = _reached(function(*args), leaves)
        if len(names) < len(every) and any(each is None for each in found):
            raise _Partly
        return _filled(found, leaves)

    def take(index: int, rows: list[Tensor]) -> None:
        for per_sample_grad, row in zip(grads.values(), rows, strict=True):
            per_sample_grad[index] = row

    try:
        samples.loop(differentiate, model, names, batch, take, randomness=randomness)
    except Exception:
        if len(names) == len(every):
            raise
        # A backward within the forward or the backward may need more than is asked for.
        names = every
    else:
        return grads
    samples.loop(differentiate, model, names, batch, take, randomness=randomness)
    return grads


class _Partly(Exception):
    """A parameter has no gradient while others, which usually require one, do not."""


def gradients_of(
    scalar: Tensor, leaves: list[Tensor], *, retain_graph: bool = False
) -> list[Tensor]:
    """Differentiate a scalar by leaves without a `.grad`: dense, zeros where it reaches none."""
    return _filled(_reached(scalar, leaves, retain_graph=retain_graph), leaves)


def _reached(
    scalar: Tensor, leaves: list[Tensor], *, retain_graph: bool = False
) -> list[Tensor | None]:
    """Differentiate a scalar; `None` where it reaches no leaf."""
    if not scalar.requires_grad:
        return [None] * len(leaves)
    try:
        # Kept for the second way below.
        grads = torch.autograd.grad(scalar, leaves, retain_graph=True, allow_unused=True)
        missing = any(each is None for each in grads)
        whole = any(leaf.grad is not None for leaf in leaves) or (
            missing and any(isinstance(node, BackwardCFunction) for node in graph(scalar))
        )
    except RuntimeError as error:
        if not any(words in str(error) for words in _REENTRANT):
            raise
        whole = True
    if whole:
        # A backward within the backward, as of a reentrant checkpoint, fills the `.grad` of what is
        # met there. It is not seen in the graph.
        for leaf in leaves:
            leaf.grad = None
        scalar.backward(retain_graph=retain_graph)
        grads = [leaf.grad for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
    return list(grads)


def _filled(grads: list[Tensor | None], leaves: list[Tensor]) -> list[Tensor]:
    """Detach gradients and make them dense, zeros where there is none."""
    return [
        torch.zeros_like(leaf)
        if each is None
        else (each if each.layout is torch.strided else each.to_dense()).detach()
        for leaf, each in zip(leaves, grads, strict=True)
    ]


def push(
    outputs: Tensor, pull: Callable[[Tensor], tuple[dict[str, Tensor]]], vector: dict[str, Tensor]
) -> Tensor:
    """Multiply a Jacobian with a vector, given the `vjp` of a function.

    What `pull` returns is linear in what it is given, so a `vjp` of it is the product: a `jvp` made
    of backwards. The `jvp` of torch is not the transpose of each backward: it moves the padding of
    an embedding, and takes a custom operator for a constant. `check_pushed` says if this one is.
    """
    return vjp(pull, torch.zeros_like(outputs))[1]((vector,))[0]


def check_pushed(
    pushed: Tensor, outputs: Tensor, pulled: dict[str, Tensor], vector: dict[str, Tensor]
) -> None:
    """Check that a push and a pull belong to one Jacobian: `u (J v)` is `(u J) v`.

    It is not where a backward cannot be differentiated, or a hook on gradients is not linear. The
    vector became `pushed`, and `outputs`, of its shape, became `pulled`.

    Raises:
        NotImplementedError: They do not.
    """
    one, other = (torch.cat([e[name].flatten() for name in vector]) for e in (pulled, vector))
    there, back = pushed.flatten().dot(outputs.flatten()), one.dot(other)
    sizes = pushed.norm() * outputs.norm() + one.norm() * other.norm()
    right = (there - back).abs() <= torch.finfo(there.dtype).eps ** 0.5 * sizes
    if not debug_unwrap(right).all():  # under `vmap`, there may be many vectors
        raise NotImplementedError(
            "torch.func pushes forward another Jacobian than it pulls back, by a hook on "
            "gradients, a scripted module, or a backward that cannot be differentiated"
        )
