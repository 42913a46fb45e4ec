"""One sample after the other, in plain autograd: slow, and right for every differentiable model."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from helpers.transforms import fallback
from helpers.transforms import randomness as streams
from helpers.transforms.known_wrong import Watched
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
) -> dict[str, Tensor]:
    """Differentiate a scalar function of each sample: `{name: (B, *shape)}`, detached.

    They come in `dtype` or that of the parameter; zeros where the function does not reach one.
    """
    grads = {
        name: tensor.new_zeros((len(batch[0]), *tensor.shape), dtype=dtype, requires_grad=False)
        for name, tensor in params.items()
    }
    if not grads or not len(batch[0]):
        return grads
    own = dict(model.named_parameters())
    leaves = [own[name] for name in grads]

    def differentiate(model: nn.Module, *sample: Tensor) -> list[Tensor]:
        return by_backward(function(model, *sample), leaves)

    def take(index: int, rows: list[Tensor]) -> None:
        for per_sample_grad, row in zip(grads.values(), rows, strict=True):
            per_sample_grad[index] = row

    for_each(differentiate, model, grads, batch, take, randomness=randomness)
    flagged = {name for name, each in own.items() if each.requires_grad}
    unmet = (not rows[:, None].flatten(1).any(1).all() for rows in grads.values())
    if not flagged <= grads.keys() and any(unmet):
        # A checkpoint may need gradients of parameters that are not asked for.
        for_each(differentiate, model, flagged | {*grads}, batch, take, randomness=randomness)
    return grads


def for_each(
    function: Callable[..., Any],
    model: nn.Module,
    names: Collection[str],
    batch: tuple[Tensor, ...],
    take: Callable[[int, Any], None],
    *,
    randomness: str = "error",
) -> None:
    """Call `take(index, function(model, *sample))` for each sample, and put the model back.

    Exactly the parameters of these names require a gradient. Raises ValueError where random numbers
    are drawn and `randomness` is `"error"`.
    """

    def run(index: int) -> Any:
        # Clones, since autograd does not save tensors that were made in inference mode.
        sample = [tensor[index].detach().clone() for tensor in batch]
        try:
            return function(model, *sample)
        except Exception as error:
            fallback.add_place(error, model)
            raise

    with preserved(model, names) as snapshot, torch.enable_grad(), Watched():
        state = partial(streams.random_state, batch[0].device, snapshot.generators)
        first = state()
        for index in range(len(batch[0])):
            if randomness == "same":
                streams.restore_random_state(first)
            if randomness == "error" and index == 0:
                result = _first(partial(run, 0), state, snapshot)
            else:
                result = run(index)
            take(index, result)
            snapshot.restore()


def _first(run: Callable[[], Any], state: Callable[[], streams.State], snapshot: Snapshot) -> Any:
    """Run the first sample until the streams end where they were before; raise if they never do."""
    states = [state()]
    for _ in range(3):  # another thread may have drawn, but hardly each time
        result, end = run(), state()
        # A model with a seed of its own ends in one state, wherever it begins.
        if any(streams.alike(end, each) for each in states):
            return result
        states.append(end)
        snapshot.restore()
    raise ValueError(streams.RANDOMNESS)


def by_backward(
    scalar: Tensor, leaves: list[Tensor], *, retain_graph: bool = False
) -> list[Tensor]:
    """Differentiate a scalar with respect to leaves: dense, zeros where it reaches none."""
    for leaf in leaves:
        leaf.grad = None
    if scalar.requires_grad:
        # The backward pass of a custom function, such as a reentrant checkpoint, may run another
        # one, for leaves that this graph does not show.
        custom = any(isinstance(node, BackwardCFunction) for node in graph(scalar))
        scalar.backward(inputs=None if custom else leaves, retain_graph=retain_graph)
    grads = []
    for leaf in leaves:
        found, leaf.grad = leaf.grad, None
        grads.append(torch.zeros_like(leaf) if found is None else found.to_dense().detach())
    return grads
