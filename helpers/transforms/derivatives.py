"""Derivatives of a scalar function of each sample: by a loop of backwards, or by `vmap(grad)`.

What `helpers.gradients` and `helpers.gradient_computers` have in common. The function is that of
`helpers.transforms.samples`: `function(model, params, buffers, *sample)`.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad

from helpers.transforms import modules, samples


def by_loop(
    function: Callable[..., Tensor],
    model: nn.Module,
    params: dict[str, Tensor],
    batch: tuple[Tensor, ...],
    *,
    dtype: torch.dtype | None = None,
    randomness: str = "error",
    out: dict[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Differentiate a scalar function of each sample by `params`, in plain autograd.

    Args:
        function: See `helpers.transforms.samples`; returns a scalar.
        model: Any module.
        params: Detached tensors by parameter name.
        batch: Tensors `(B, ...)`, at least one.
        dtype: Of the result; `None` means that of each tensor of `params`.
        randomness: As in `helpers.transforms.samples.loop`.
        out: `{name: (B, *shape)}`, where to write the result; `None` means into new tensors.

    Returns:
        `{name: (B, *shape)}`, detached; zeros where the function does not reach a parameter.

    Raises:
        ValueError: The function draws random numbers and `randomness` is `"error"`.
    """
    grads = _zeros(params, len(batch[0]), dtype) if out is None else out
    if not grads or not len(batch[0]):
        return grads

    def run(pull: Pull) -> set[str]:
        def differentiate(stand_in: nn.Module, *args: Any) -> list[Tensor]:
            own = dict(stand_in.named_parameters())
            return pull(function(stand_in, *args), [own[name] for name in grads])

        def take(index: int, rows: list[Tensor]) -> None:
            for per_sample_grad, row in zip(grads.values(), rows, strict=True):
                per_sample_grad[index] = row

        return samples.loop(differentiate, model, grads, batch, take, randomness=randomness)

    with_pull(run, model, grads)
    return grads


# How torch of several versions says that a checkpoint is reentrant.
_REENTRANT = ("is incompatible with .grad()", "is not compatible with .grad()")
Pull = Callable[..., list[Tensor]]
"""`pull(scalar, leaves, *, retain_graph=False)`: its gradients; zeros where it reaches none."""


def with_pull(run: Callable[[Pull], set[str]], model: nn.Module, names: Iterable[str]) -> None:
    """Run a function that differentiates: by gradients asked for, or else by a whole backward.

    Reentrant checkpoints want the latter, which fills the `.grad` of all that is there.

    Args:
        run: Differentiates a copy of the model, and returns the names of parameters that belong to
            the model itself, as `helpers.transforms.samples.loop` does. Then it runs again, and the
            gradient is the sum of both.
        model: The model itself.
        names: The parameters to differentiate by, in the order of the leaves.

    Raises:
        ValueError: One of the parameters that are met in the model itself is frozen there.
    """
    own = dict(model.named_parameters())
    # A backward within the backward may reach what no graph shows.
    accumulate = functools.partial(_accumulate, spared=[*own.values()])
    try:
        captured = run(_ask)
    except RuntimeError as error:
        if not any(words in str(error) for words in _REENTRANT):
            raise
        captured = run(accumulate)
    for name in captured:
        if not own[name].requires_grad:
            raise ValueError(
                f"{name} reaches a torch.autograd.Function by a closure, and its gradient is found "
                "there only while it requires one: call its requires_grad_() first, or take it "
                "from the module in the forward"
            )
    if captured:
        run(functools.partial(accumulate, originals=[own[name] for name in names]))


def _ask(scalar: Tensor, leaves: list[Tensor], *, retain_graph: bool = False) -> list[Tensor]:
    if not scalar.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    grads = torch.autograd.grad(scalar, leaves, retain_graph=retain_graph, materialize_grads=True)
    # Zeros of torch 2.6 require grad, and an embedding may have a sparse gradient.
    return [each.detach() if each.layout is torch.strided else each.to_dense() for each in grads]


def _accumulate(
    scalar: Tensor,
    leaves: list[Tensor],
    *,
    spared: Sequence[Tensor],
    originals: Sequence[Tensor] = (),
    retain_graph: bool = False,
) -> list[Tensor]:
    if not scalar.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    with torch._C.DisableTorchFunction():  # or `Reach` would lead it from the originals
        met = {id(leaf): leaf for leaf in (*_leaves(scalar), *spared)}
        others = [leaf for leaf in met.values() if not any(leaf is own for own in leaves)]
        kept = [leaf.grad for leaf in others]
        for leaf in others:
            leaf.grad = None
        try:
            scalar.backward(retain_graph=retain_graph)
            totals = [torch.zeros_like(leaf) for leaf in leaves]
            for group in (leaves, originals):
                for total, leaf in zip(totals, group, strict=False):
                    if leaf.grad is not None:
                        total += leaf.grad
            return totals
        finally:
            for leaf in leaves:
                leaf.grad = None
            for leaf, before in zip(others, kept, strict=True):
                leaf.grad = before


def _leaves(scalar: Tensor) -> list[Tensor]:
    """List the tensors that a backward would fill the `.grad` of."""
    seen, waiting, found = set(), [scalar.grad_fn], []
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
            if hasattr(node, "variable"):
                found.append(node.variable)
    return found


def by_vmap(
    function: Callable[..., Tensor],
    model: nn.Module,
    params: dict[str, Tensor],
    batch: tuple[Tensor, ...],
    *,
    dtype: torch.dtype | None = None,
    chunk_size: int | None = None,
    randomness: str = "error",
    out: dict[str, Tensor] | None = None,
    stand_in: modules.StandIn | None = None,
    otherwise: Callable[[], dict[str, Tensor]] | None = None,
) -> dict[str, Tensor]:
    """Differentiate a scalar function of each sample by `params`, with `vmap` over `grad`.

    Args:
        function: See `helpers.transforms.samples`; returns a scalar.
        model: Any module.
        params: Detached tensors by parameter name.
        batch: Tensors `(B, ...)`, at least one.
        dtype: Of the result; `None` means that of each tensor of `params`.
        chunk_size: How many samples at a time; `None` means all.
        randomness: `"error"`, `"different"` or `"same"`, as in `torch.vmap`.
        out: `{name: (B, *shape)}`, where to write the result; `None` means into new tensors.
        stand_in: For the model; `None` means a new one.
        otherwise: What computes the same where the samples cannot be batched; `None` means
            `by_loop`.

    Returns:
        `{name: (B, *shape)}`, detached; zeros where the function does not reach a parameter.

    Raises:
        ValueError: The function draws random numbers and `randomness` is `"error"`.
    """
    if len(batch[0]) == 0 or not params:
        return _zeros(params, len(batch[0]), dtype) if out is None else out

    def transform(function: Callable[..., Tensor]) -> Callable[..., dict[str, Tensor]]:
        def gradient(*args: Any) -> dict[str, Tensor]:
            grads = grad(function, argnums=1)(*args)
            # Converted here, a chunk at a time, and not when all are there.
            return {name: tensor.to(dtype or tensor.dtype) for name, tensor in grads.items()}

        return gradient

    def loop() -> dict[str, Tensor]:
        return by_loop(function, model, params, batch, dtype=dtype, randomness=randomness, out=out)

    return samples.vmapped(
        function,
        stand_in or modules.StandIn(model),
        params,
        batch,
        transform=transform,
        otherwise=otherwise or loop,
        chunk_size=chunk_size,
        randomness=randomness,
        out=None if out is None else lambda _: out,
    )


def _zeros(
    params: dict[str, Tensor], batch_size: int, dtype: torch.dtype | None
) -> dict[str, Tensor]:
    """Make room for the gradients of a batch."""
    return {
        name: tensor.new_zeros((batch_size, *tensor.shape), dtype=dtype, requires_grad=False)
        for name, tensor in params.items()
    }
