"""Samples of a batch, one function call for each: in a loop, or in one `vmap`.

The function is `function(model, params, buffers, *sample)`. It gets a copy of the model to work on
(`helpers.transforms.modules.StandIn`), the tensors that stand in for the copy's own, and one
sample without its dimension B. So samples see neither each other nor what a forward writes into a
tensor or keeps on `self`, and the caller's model stays as it was.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_map

from helpers.transforms import fallback, recurrent
from helpers.transforms import randomness as streams
from helpers.transforms.modules import StandIn
from helpers.transforms.reach import Reach

Function = Callable[..., Any]
Batch = tuple[Tensor, ...]
# Given the results of the first chunk, returns tensors in the same structure, for all samples.
Out = Callable[[Any], Any]

# How torch says that a batched value does not fit into a tensor that has no batch dimension; the
# last is InstanceNorm, which updates its running statistics.
_UNBATCHED = (
    "vmap: inplace arithmetic",
    "doesn't match the broadcast shape",
    "running_mean or running_var, which will be updated in place, were not batched",
)


def loop(
    function: Function,
    model: nn.Module,
    names: Iterable[str],
    batch: Batch,
    take: Callable[[int, Any], None],
    *,
    randomness: str = "error",
) -> set[str]:
    """Call a function for one sample after the other, in plain autograd.

    The function gets no parameters and buffers: those of the copy itself are meant, of which the
    chosen ones require a gradient. So whatever works in autograd works here, in a forward that is
    run again by a checkpoint, say, or that finds its parameters in a list.

    Args:
        function: See the module. It is called as `function(model, {}, {}, *sample)`, and does its
            backward too, if there is one.
        model: Any module.
        names: The parameters that require a gradient.
        batch: Tensors `(B, ...)`, at least one.
        take: Called with the number of a sample and what the function returned for it; it may be
            called twice for a sample, and the second time counts.
        randomness: `"error"` refuses a function that draws random numbers; `"different"` and
            `"same"` are as in `torch.vmap`.

    Returns:
        The names of parameters that the function did not take from the copy: it closes over those
        of the model itself, and gave them to a `torch.autograd.Function`.

    Raises:
        ValueError: The function draws random numbers, and `randomness` is `"error"`.
    """
    stand_in = StandIn(model)
    names = [*names]
    for name in names:
        stand_in.params[name].requires_grad_()
    # Writes that leave no trace are looked for once, behind the first sample, and at the end: to
    # compare all numbers takes longer than many a sample.
    reach = stand_in.reach(stand_in.params | stand_in.buffers)
    with eager():
        if _pass(function, stand_in, reach, batch, take, randomness, careful=False):
            _pass(function, stand_in, reach, batch, take, randomness, careful=True)
    return reach.captured.intersection(names)


def _pass(
    function: Function,
    stand_in: StandIn,
    reach: Reach,
    batch: Batch,
    take: Callable[[int, Any], None],
    randomness: str,
    *,
    careful: bool,
) -> bool:
    """Call the function for all samples; say whether one met what another had written."""
    device, size = batch[0].device, len(batch[0])
    first = streams.random_state(device)
    for index in range(size):
        if randomness == "same":
            streams.restore_random_state(first, device)
        state = streams.random_state(device)
        # Clones, since autograd does not save tensors that were made in inference mode.
        sample = [tensor[index].detach().clone() for tensor in batch]
        needed = index == 0 or stand_in.has_functions or reach.met or reach.met_norm
        seen = reach if needed else contextlib.nullcontext()
        try:
            with torch.enable_grad(), seen:
                take(index, function(stand_in.model, {}, {}, *sample))
        except Exception as error:
            fallback.explain(error, stand_in.models)
            raise
        finally:
            stand_in.undo()
        if index == 0 and randomness == "error":
            streams.check_repeatable(state, device)
        if stand_in.undo_writes(hidden=careful or index == 0):
            careful = True
    return size > 1 and stand_in.undo_writes(hidden=True)


@fallback.once
def vmapped(
    function: Function,
    stand_in: StandIn,
    names: Iterable[str],
    batch: Batch,
    *,
    transform: Callable[[Function], Function],
    otherwise: Callable[[], Any],
    chunk_size: int | None = None,
    randomness: str = "error",
    out: Out | None = None,
) -> Any:
    """Call a transformed function for all samples at once, with `torch.vmap`.

    Args:
        function: See the module.
        stand_in: For the model.
        names: The parameters that the function gets.
        batch: Tensors `(B, ...)`, at least one; B at least 1.
        transform: What is to be batched, such as `torch.func.grad` by the parameters.
        otherwise: Computes and returns the same, in a loop, where `vmap` cannot.
        chunk_size: How many samples at a time; `None` means all.
        randomness: `"error"`, `"different"` or `"same"`, as in `torch.vmap`.
        out: Where the results are to be written; `None` means into new tensors.

    Returns:
        What the function returns, with a dimension B in front of each tensor, detached.

    Raises:
        ValueError: The function draws random numbers and `randomness` is `"error"`.
    """
    params = {name: stand_in.params[name] for name in names}
    function = recurrent.unrolling(function, stand_in.model)
    transformed = transform(stand_in.reaching(function))
    per_chunk = isolated(functools.partial(transformed, stand_in.model), stand_in)
    size = len(batch[0])
    step = size if chunk_size is None else chunk_size
    device = batch[0].device
    state = streams.random_state(device)
    places = None
    # Each chunk is written where it belongs: to concatenate them takes the memory of all results
    # a second time. So `torch.vmap` is not told the chunk size.
    for start in range(0, size, step):
        if randomness == "same":  # what `torch.vmap` does for its chunks
            streams.restore_random_state(state, device)
        chunk = tuple(tensor[start : start + step] for tensor in batch)
        failed = None
        try:
            with eager():
                results = map_samples(
                    per_chunk, params, stand_in.buffers, chunk, randomness=randomness
                )
        except streams.Drawn as error:
            raise ValueError(streams.RANDOMNESS) from error
        except Exception as error:  # whatever a model can raise; the loop says if it is at fault
            if fallback.is_no_memory(error):
                raise
            failed = error
        if failed is not None:  # here, since what the loop raises has no part in it
            streams.restore_random_state(state, device)
            return fallback.instead(otherwise, failed, stand_in.models)
        if out is None and step >= size:
            # A function with parameters of its own would leave a graph.
            return tree_map(torch.detach, results)
        if places is None:
            places = (out or functools.partial(_empty, size=size))(results)
        with torch.no_grad():
            tree_map(
                lambda place, rows: place[start : start + step].copy_(rows),  # noqa: B023
                places,
                results,
            )
        del results  # or it would lie beside those of the next chunk
        if start + step < size:
            stand_in.undo_writes(hidden=True)
    return places


def isolated(per_sample: Function, stand_in: StandIn) -> Function:
    """Give each call of `per_sample(params, buffers, *sample)` a model that no other call changed.

    Args:
        per_sample: A function that runs the model that stands in.
        stand_in: For the model.

    Returns:
        A function with the same arguments.
    """

    def run(params: Any, buffers: Any, *sample: Tensor) -> Any:
        try:
            # Clones, so that each attempt starts from the same buffers.
            return per_sample(params, _copies(buffers), *sample)
        finally:
            stand_in.undo()

    return run


def map_samples(
    per_sample: Function, params: Any, buffers: Any, batch: Batch, **options: Any
) -> Any:
    """Run `per_sample(params, buffers, *sample)` for each sample of a batch, with `torch.vmap`.

    Args:
        per_sample: Function of one sample; tensors of a batch reach it without their dimension B.
        params: What all samples share.
        buffers: The model's buffers, by name or in order. All samples share them as well, unless
            the model writes a sample's values into them; then each sample gets its own.
        batch: Tensors `(B, ...)`.
        options: `randomness` of `torch.vmap`.

    Returns:
        What `per_sample` returns, with a dimension B in front of each tensor.

    Raises:
        ValueError: The model draws random numbers and `randomness` is `"error"`.
    """
    dims = (0,) * len(batch)
    try:
        try:
            with fallback.named():
                compute = vmap(per_sample, in_dims=(None, None, *dims), **options)
                return compute(params, buffers, *batch)
        except RuntimeError as error:
            if not any(fragment in str(error) for fragment in _UNBATCHED):
                raise
        own = tree_map(lambda buffer: buffer.expand(len(batch[0]), *buffer.shape), buffers)
        with fallback.named():
            return vmap(per_sample, in_dims=(None, 0, *dims), **options)(params, own, *batch)
    except RuntimeError as error:
        if "randomness error mode" in str(error):
            raise streams.Drawn(streams.RANDOMNESS) from error
        raise


def eager() -> contextlib.AbstractContextManager[Any]:
    """Run what `torch.compile` has wrapped as it is written, as transforms need it."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def _copies(buffers: Any) -> Any:
    """Clone buffers, by name or in order."""
    return tree_map(torch.clone, buffers)


def _empty(results: Any, size: int) -> Any:
    """Make room for the results of `size` samples, given those of some."""
    return tree_map(lambda rows: rows.detach().new_empty((size, *rows.shape[1:])), results)
