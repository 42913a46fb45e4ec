"""Samples of a batch, one function call for each: in a loop, or in one `vmap`.

The function is `function(model, params, buffers, *sample)`. It gets a copy of the model's structure
to work on, the tensors that are shared or differentiated, the buffers as they stand before each
sample, and one sample without its dimension B. So samples see neither each other nor what a
forward writes into a buffer or keeps on `self`, and the caller's model stays as it was.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_map

from helpers.transforms import modules
from helpers.transforms import randomness as streams

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
    function: Function, model: nn.Module, params: dict[str, Tensor], batch: Batch
) -> Iterator[Any]:
    """Call a function for one sample after the other, in plain autograd.

    Args:
        function: See the module; whatever has a forward will do.
        model: Any module.
        params: Tensors by parameter name, leaves if they are to be differentiated.
        batch: Tensors `(B, ...)`, at least one.

    Yields:
        What the function returned for each sample.

    Raises:
        ValueError: The function draws random numbers.
    """
    # Copies: a forward may write into a weight, as `nn.Embedding(max_norm=...)` does.
    stand_in = modules.with_tensors(model, lambda tensor: tensor.detach().clone())
    buffers = dict(model.named_buffers())
    device = batch[0].device
    for index in range(len(batch[0])):
        state = streams.random_state(device)
        # Clones, since autograd does not save tensors that were made in inference mode.
        sample = [tensor[index].detach().clone() for tensor in batch]
        with torch.enable_grad(), modules.attributes_kept(stand_in):
            result = function(stand_in, params, _copies(buffers), *sample)
        if index == 0:
            streams.check_repeatable(state, device)
        yield result


def vmapped(
    function: Function,
    model: nn.Module,
    params: dict[str, Tensor],
    batch: Batch,
    *,
    chunk_size: int | None = None,
    randomness: str = "error",
    out: Out | None = None,
) -> Any:
    """Call a function for all samples at once, with `torch.vmap`.

    Args:
        function: See the module; it may use transforms such as `torch.func.grad` by `params`.
        model: Any module.
        params: Tensors by parameter name.
        batch: Tensors `(B, ...)`, at least one; B at least 1.
        chunk_size: How many samples at a time; `None` means all.
        randomness: `"error"`, `"different"` or `"same"`, as in `torch.vmap`.
        out: Where the results are to be written; `None` means into new tensors.

    Returns:
        What the function returns, with a dimension B in front of each tensor, detached.

    Raises:
        ValueError: The function draws random numbers and `randomness` is `"error"`.
    """
    stand_in, buffers = modules.detached(model), dict(model.named_buffers())

    def per_sample(params: dict[str, Tensor], buffers: dict[str, Tensor], *sample: Tensor) -> Any:
        return function(stand_in, params, buffers, *sample)

    per_chunk = isolated(per_sample, stand_in)
    size = len(batch[0])
    step = size if chunk_size is None else chunk_size
    if out is None and step >= size:
        results = map_samples(per_chunk, params, buffers, batch, randomness=randomness)
        # A function with parameters of its own would leave a graph.
        return tree_map(torch.detach, results)
    # Each chunk is written where it belongs: to concatenate them takes the memory of all results
    # a second time. So `torch.vmap` is not told the chunk size.
    device = batch[0].device
    state = streams.random_state(device)
    for start in range(0, size, step):
        if randomness == "same":  # what `torch.vmap` does for its chunks
            streams.restore_random_state(state, device)
        part = slice(start, start + step)
        chunk = tuple(tensor[part] for tensor in batch)
        results = map_samples(per_chunk, params, buffers, chunk, randomness=randomness)
        if start == 0:
            places = (out or functools.partial(_empty, size=size))(results)
        with torch.no_grad():
            tree_map(lambda place, rows: place[part].copy_(rows), places, results)  # noqa: B023
        del results  # or it would lie beside those of the next chunk
    return places


def isolated(per_sample: Function, model: nn.Module) -> Function:
    """Give each call of `per_sample(params, buffers, *sample)` a model that no other call changed.

    Args:
        per_sample: A function that runs `model`.
        model: The copy of a model that `per_sample` works on.

    Returns:
        A function with the same arguments.
    """

    def run(params: Any, buffers: Any, *sample: Tensor) -> Any:
        # Without a clone, a forward that writes into a buffer would write into the caller's.
        with modules.attributes_kept(model):
            return per_sample(params, _copies(buffers), *sample)

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
            return vmap(per_sample, in_dims=(None, None, *dims), **options)(params, buffers, *batch)
        except RuntimeError as error:
            if not any(fragment in str(error) for fragment in _UNBATCHED):
                raise
        own = tree_map(lambda buffer: buffer.expand(len(batch[0]), *buffer.shape), buffers)
        return vmap(per_sample, in_dims=(None, 0, *dims), **options)(params, own, *batch)
    except RuntimeError as error:
        if "randomness error mode" in str(error):
            raise ValueError(streams.RANDOMNESS) from error
        raise


def _copies(buffers: Any) -> Any:
    """Clone buffers, by name or in order."""
    return tree_map(torch.clone, buffers)


def _empty(results: Any, size: int) -> Any:
    """Make room for the results of `size` samples, given those of some."""
    return tree_map(lambda rows: rows.detach().new_empty((size, *rows.shape[1:])), results)
