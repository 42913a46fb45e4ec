"""One sample at a time, in plain autograd: slow, and right where plain autograd is."""

from collections.abc import Callable, Collection
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from helpers.transforms import fallback
from helpers.transforms import randomness as streams
from helpers.transforms.known_wrong import BY_HAND, Watched
from helpers.transforms.restore import Snapshot, preserved
from helpers.transforms.samples import graph


def gradients(
    function: Callable[..., Tensor],
    model: nn.Module,
    params: dict[str, Tensor],
    batch: tuple[Tensor, ...],
    *,
    dtype: torch.dtype | None = None,
    randomness: str = "error",
    warn: bool = False,
) -> dict[str, Tensor]:
    """Differentiate a scalar function of each sample: `{name: (B, *shape)}`, detached.

    The dtype is `dtype` or the parameter's; zeros for a parameter that the function does not use,
    with a warning, if asked for, where it uses none.
    """
    grads = {
        name: tensor.new_zeros((len(batch[0]), *tensor.shape), dtype=dtype, requires_grad=False)
        for name, tensor in params.items()
    }
    if not grads or not len(batch[0]):
        return grads
    parameters = dict(model.named_parameters())
    leaves = [parameters[name] for name in grads]

    def store(index: int, rows: list[Tensor]) -> None:
        for per_sample_grad, row in zip(grads.values(), rows, strict=True):
            per_sample_grad[index] = row

    reached = False

    def backward(loss: Tensor) -> list[Tensor]:
        nonlocal reached
        reached |= loss.requires_grad
        return by_backward(loss, leaves)

    options = {"backward": backward, "randomness": randomness}
    for_each(function, model, grads, batch, store, **options)
    flagged = {name for name, parameter in parameters.items() if parameter.requires_grad}
    unmet = (not rows[:, None].flatten(1).any(1).all() for rows in grads.values())
    if not flagged <= grads.keys() and any(unmet):
        # A checkpoint may need gradients of parameters that were not selected.
        for_each(function, model, flagged | {*grads}, batch, store, **options)
    if warn and not reached:
        warning = "the loss depends on none of the selected parameters, so all gradients are 0: "
        fallback.warn(f"{warning}is there a no_grad, detach() or item()?", category=UserWarning)
    return grads


def for_each(
    function: Callable[..., Any],
    model: nn.Module,
    names: Collection[str],
    batch: tuple[Tensor, ...],
    store: Callable[[int, Any], None],
    *,
    backward: Callable[[Tensor], Any] = lambda value: value,
    randomness: str = "error",
) -> None:
    """Call `store(index, backward(function(model, *sample)))` for each, and restore the model.

    Exactly the named parameters require a gradient. Raises ValueError if the first sample draws
    random numbers and `randomness` is `"error"`.
    """
    watched = False

    def run(index: int) -> Any:
        nonlocal watched
        if randomness == "same":
            streams.restore_random_state(first)
        # Clones, since autograd does not save tensors that were made in inference mode.
        sample = [tensor[index].detach().clone() for tensor in batch]
        try:
            # A mode disables some of torch's fast paths, so it is used only once needed.
            with Watched() if watched else nullcontext():
                value = function(model, *sample)
                nodes = " ".join(node.name() for node in graph(value))
                if watched or not any(kind in nodes for kind in BY_HAND):
                    return backward(value)
        except Exception as error:
            fallback.add_place(error, model)
            raise
        watched = True
        snapshot.restore()
        return run(index)

    with preserved(model, names, function, store) as snapshot, torch.enable_grad():
        state = partial(streams.random_state, batch[0].device, snapshot.generators)
        first = state()
        for index in range(len(batch[0])):
            if randomness == "error" and index == 0:
                result = _first(partial(run, 0), state, snapshot)
            else:
                result = run(index)
            store(index, result)
            snapshot.restore()


def _first(run: Callable[[], Any], state: Callable[[], streams.State], snapshot: Snapshot) -> Any:
    """Run the first sample until the generators end where they started; raise if they never do."""
    states = [state()]
    for _ in range(3):  # another thread may have drawn, but not every time
        result, end = run(), state()
        # A model with a seed of its own ends in one state, wherever it begins.
        if any(streams.alike(end, state_before) for state_before in states):
            return result
        states.append(end)
        snapshot.restore()
    raise ValueError(streams.RANDOMNESS)


def by_backward(
    scalar: Tensor, leaves: list[Tensor], *, retain_graph: bool = False
) -> list[Tensor]:
    """Differentiate a scalar with respect to leaves: dense, zeros for unused ones."""
    nodes = [*graph(scalar)]
    # The backward pass of a custom function, such as a reentrant checkpoint, may run another one,
    # for leaves that this graph does not show. The others may belong to the loss.
    custom = any(isinstance(node, BackwardCFunction) for node in nodes)
    reachable = {*leaves, *(node.variable for node in nodes if hasattr(node, "variable"))}
    before = {leaf: leaf.grad for leaf in reachable}
    for leaf in reachable:
        leaf.grad = None
    try:
        inputs = [leaf for leaf in leaves if leaf.requires_grad]  # a forward pass may freeze some
        if scalar.requires_grad and inputs:
            scalar.backward(inputs=None if custom else inputs, retain_graph=retain_graph)
        grads = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    finally:
        for leaf, gradient in before.items():
            leaf.grad = gradient
    return [grad.to_dense().detach() for grad in grads]
