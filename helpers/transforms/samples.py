"""Samples of a batch, one function call for each: in a loop, or in one `vmap`.

The function is `function(model, params, buffers, *sample)`. It gets the caller's own model, the
tensors that are to take the place of the model's, and one sample without its dimension B, which is
a copy. In the loop there are no such tensors: the model runs as it is. Between samples of a loop,
and around each call of `vmap`, the model is put back as it was.
"""

import contextlib
import functools
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from helpers.transforms import fallback
from helpers.transforms import randomness as streams
from helpers.transforms.call import (
    CuredNorms,
    ParameterAliases,
    batchable_recurrence,
    check_within_reach,
)
from helpers.transforms.restore import preserved

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
    names: Collection[str],
    batch: Batch,
    take: Callable[[int, Any], None],
    *,
    randomness: str = "error",
) -> None:
    """Call a function for one sample after the other, in plain autograd.

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

    Raises:
        ValueError: The function draws random numbers, and `randomness` is `"error"`.
    """
    device, size = batch[0].device, len(batch[0])
    first = streams.random_state(device)
    cured = CuredNorms()
    # A write into `tensor.data` leaves no trace but the numbers, and to compare all of them takes
    # longer than many a sample. So they are compared behind the first sample, and at the end.
    compare, index = False, 0
    with preserved(model, names) as snapshot, eager(), torch.enable_grad():
        while index < size:
            if randomness == "same":
                streams.restore_random_state(first, device)
            # Clones, since autograd does not save tensors that were made in inference mode.
            sample = [tensor[index].detach().clone() for tensor in batch]
            try:
                with cured if index == 0 or cured.met_norm else contextlib.nullcontext():
                    take(index, function(model, {}, {}, *sample))
            except Exception as error:
                fallback.add_place(error, model)
                raise
            if index == 0 and randomness == "error":
                streams.check_repeatable(first, device)
            last = index == size - 1
            wrote = snapshot.restore(compare=compare or index == 0 or last)
            if wrote and last and not compare and index:  # samples in between met what others wrote
                index = -1
                streams.restore_random_state(first, device)
            compare = compare or wrote
            index += 1


def vmapped(
    function: Function,
    model: nn.Module,
    names: Collection[str],
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
        model: Any module.
        names: The parameters that the function gets.
        batch: Tensors `(B, ...)`, at least one; B at least 1.
        transform: What is to be batched, such as `torch.func.grad` by the parameters; it gets and
            returns a function `(params, buffers, *sample)`.
        otherwise: Computes and returns the same, in a loop, where `vmap` cannot.
        chunk_size: How many samples at a time; `None` means all.
        randomness: `"error"`, `"different"` or `"same"`, as in `torch.vmap`.
        out: Where the results are to be written; `None` means into new tensors.

    Returns:
        What the function returns, with a dimension B in front of each tensor, detached.

    Raises:
        ValueError: The function draws random numbers and `randomness` is `"error"`.
    """
    size, device = len(batch[0]), batch[0].device
    step = size if chunk_size is None else chunk_size
    state = None if randomness == "error" else streams.random_state(device)
    places = failed = None
    with running(model, names) as (snapshot, params, buffers):
        per_sample = transform(reaching(function, model, names))
        # Each chunk is written where it belongs: to concatenate them takes the memory of all
        # results a second time. So `torch.vmap` is not told the chunk size.
        for start in range(0, size, step):
            if randomness == "same":  # what `torch.vmap` does for its chunks
                streams.restore_random_state(state, device)
            chunk = tuple(tensor[start : start + step] for tensor in batch)
            try:
                results = map_samples(
                    per_sample, params, buffers, chunk, snapshot.restore, randomness=randomness
                )
            except streams.Drawn as error:
                raise ValueError(streams.RANDOMNESS) from error
            except Exception as error:  # whatever a model can raise; the loop tells
                if fallback.is_no_memory(error):
                    raise
                failed = error
                break
            if out is None and step >= size:
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
    if failed is None:
        return places
    if state is not None:
        streams.restore_random_state(state, device)
    return fallback.to_loop(otherwise, failed, model)


@contextlib.contextmanager
def running(
    model: nn.Module, names: Collection[str]
) -> Iterator[tuple[Any, dict[str, Tensor], dict[str, Tensor]]]:
    """Let a block run a model under transforms, and put it back as it was.

    Args:
        model: Any module.
        names: The parameters to differentiate.

    Yields:
        The state of the model; its parameters of these names and its buffers, detached.
    """
    with preserved(model, names) as snapshot, batchable_recurrence(model), eager():
        own = dict(model.named_parameters())
        buffers = {name: buffer.detach() for name, buffer in model.named_buffers()}
        with torch.enable_grad():
            yield snapshot, {name: own[name].detach() for name in names}, buffers


def reaching(function: Function, model: nn.Module, names: Collection[str]) -> Function:
    """Make `function(model, params, buffers, *sample)` one of `(params, buffers, *sample)`.

    Wherever the model meets its own parameters, the tensors in their place are used, or it is
    refused. And it writes neither into the buffers of other samples nor into the caller's data.
    """
    own, own_buffers = dict(model.named_parameters()), dict(model.named_buffers())
    ids = {id(tensor): name for name, tensor in (*own.items(), *own_buffers.items())}

    def run(params: dict[str, Tensor], buffers: dict[str, Tensor], *sample: Tensor) -> Any:
        buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        with ParameterAliases(ids, params | buffers):
            value = function(model, params, buffers, *(tensor.clone() for tensor in sample))
        check_within_reach(value, [own[name] for name in names])
        return value

    return run


def map_samples(
    per_sample: Function,
    params: Any,
    buffers: Any,
    batch: Batch,
    restore: Callable[[], Any],
    **options: Any,
) -> Any:
    """Run `per_sample(params, buffers, *sample)` for each sample of a batch, with `torch.vmap`.

    Args:
        per_sample: Function of one sample; tensors of a batch reach it without their dimension B.
        params: What all samples share.
        buffers: The model's buffers, by name or in order. All samples share them as well, unless
            the model writes a sample's values into them; then each sample gets its own.
        batch: Tensors `(B, ...)`.
        restore: Puts the model back as it was, after each run.
        options: `randomness` of `torch.vmap`.

    Returns:
        What `per_sample` returns, with a dimension B in front of each tensor.

    Raises:
        ValueError: The model draws random numbers and `randomness` is `"error"`.
    """
    dims = (0,) * len(batch)
    try:
        with slow_operations_named():
            try:
                compute = vmap(per_sample, in_dims=(None, None, *dims), **options)
                return compute(params, buffers, *batch)
            except RuntimeError as error:
                if not any(fragment in str(error) for fragment in _UNBATCHED):
                    raise
            finally:
                restore()
            own = tree_map(lambda buffer: buffer.expand(len(batch[0]), *buffer.shape), buffers)
            try:
                return vmap(per_sample, in_dims=(None, 0, *dims), **options)(params, own, *batch)
            finally:
                restore()
    except RuntimeError as error:
        if "randomness error mode" in str(error):
            raise streams.Drawn(streams.RANDOMNESS) from error
        raise


@contextlib.contextmanager
def slow_operations_named() -> Iterator[None]:
    """Name the layer where torch warns of an operation that has no rule for `vmap`."""
    found: dict[str, str] = {}  # by operation, what uses it; a backward comes behind its forward

    def show(message: Warning | str, *rest: Any) -> None:
        operation = re.search(r"batching rule for aten::(\w+)", str(message))
        if operation is None:
            heard(message, *rest)
        else:
            found.setdefault(operation[1].removesuffix("_backward"), fallback.running_module())

    with warnings.catch_warnings():
        warnings.filterwarnings("always", message="There is a performance drop")
        heard, warnings.showwarning = warnings.showwarning, show
        yield
    for operation, place in found.items():
        fallback.warn(
            f"{place} uses {operation}, which torch.vmap takes one sample after the other: that "
            "is slower"
        )


def eager() -> contextlib.AbstractContextManager[Any]:
    """Run what `torch.compile` has wrapped as it is written, as transforms need it."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Call a function for each tensor in a dictionary or a tuple, or for the one tensor."""
    if isinstance(tree, dict):
        return {
            key: tree_map(function, value, *(other[key] for other in others))
            for key, value in tree.items()
        }
    if isinstance(tree, tuple):
        return tuple(tree_map(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)


def _empty(results: Any, size: int) -> Any:
    """Make room for the results of `size` samples, given those of some."""
    return tree_map(lambda rows: rows.detach().new_empty((size, *rows.shape[1:])), results)
