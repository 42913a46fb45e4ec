"""Samples of a batch, one function call for each: in a loop, or in one `vmap`.

The function is `function(model, *sample)`. It gets the caller's own model, and a copy of one sample
without its dimension B. Under transforms, the tensors by which it is differentiated take the place
of the model's. Between samples of a loop, and around each call of `vmap`, the model is put back as
it was.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap, vmap

from helpers.transforms import fallback
from helpers.transforms import randomness as streams
from helpers.transforms.call import (
    OutOfReach,
    ParameterAliases,
    batchable_recurrence,
    graph,
    swap_registered,
)
from helpers.transforms.eager import eager
from helpers.transforms.mended import Cured
from helpers.transforms.restore import Snapshot, preserved
from helpers.transforms.sequences import Sequences, UnequalLengths

Function = Callable[..., Any]
Batch = tuple[Tensor, ...]

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

    The function does its backward too, if there is one, by the parameters of these names. `take`
    is called with the number of a sample and what the function returned for it, for some samples
    twice, and the second time counts.

    Raises:
        ValueError: The function draws random numbers, and `randomness` is `"error"`.
    """
    device, size = batch[0].device, len(batch[0])
    first = streams.random_state(device)
    cured, ends = Cured(), []
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
                with cured if index == 0 or cured.used else contextlib.nullcontext():
                    take(index, function(model, *sample))
            except Exception as error:
                fallback.add_place(error, model)
                raise
            if index == 0 and randomness == "error":
                ends.append(streams.random_state(device))
                if len(ends) == 1 and not streams.alike(first, ends[0]):
                    snapshot.restore()
                    continue  # one that sets a seed itself ends at one place, wherever it begins
                if not streams.alike(ends[-1], ends[0]):
                    streams.restore_random_state(first, device)
                    raise ValueError(streams.RANDOMNESS)
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
    out: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
    dtype: torch.dtype | None = None,
) -> Any:
    """Call a transformed function for all samples at once, with `torch.vmap`.

    Args:
        function: See the module.
        model: Any module.
        names: The parameters that the function gets.
        batch: Tensors `(B, ...)`, at least one.
        transform: What is to be batched, such as `torch.func.grad` by the parameters; it gets and
            returns a function `(params, buffers, *sample)`, the latter of a tensor or a dictionary.
        otherwise: Computes and returns the same, in a loop, where `vmap` cannot, or has nothing to
            do: for no sample, or no parameter.
        chunk_size: How many samples at a time; `None` means all.
        randomness: `"error"`, `"different"` or `"same"`, as in `torch.vmap`.
        out: Returns where results are to be written, given those of the first chunk; `None` means
            into new tensors.
        dtype: Of the results; `None` means that which they come with.

    Returns:
        What the function returns, with a dimension B in front of each tensor, detached.

    Raises:
        ValueError: The function draws random numbers and `randomness` is `"error"`.
    """
    size, device = len(batch[0]), batch[0].device
    if not size or not names:
        return otherwise()
    step = size if chunk_size is None else chunk_size
    state = None if randomness == "error" else streams.random_state(device)
    failed = None
    with running(model, names) as (snapshot, params, buffers), fallback.slow_operations_named():
        # Each chunk is written where it belongs: to concatenate them takes the memory of all
        # results a second time. So `torch.vmap` is not told the chunk size.
        start, swap, per_sample = 0, False, None
        while start < size:
            if randomness == "same":  # what `torch.vmap` does for its chunks
                streams.restore_random_state(state, device)
            try:
                chunk = [*map(itemgetter(slice(start, start + step)), batch)]
                if per_sample is None:
                    per_sample = transform(reaching(function, model, names, swap=swap))
                inputs = per_sample, params, buffers
                results = map_samples(*inputs, chunk, snapshot.restore, randomness=randomness)
                rows = results if isinstance(results, dict) else {"": results}
                if start == 0 and "" not in rows:
                    unreached = [n for n, each in rows.items() if each.stride(0) == 0]
                    if len(chunk[0]) == 1 and not all(each.any() for each in rows.values()):
                        # What is not reached is expanded by `vmap`, which two samples show.
                        drawn = streams.random_state(device)
                        twice = [each.expand(2, *each.shape[1:]) for each in chunk]
                        seen = map_samples(*inputs, twice, snapshot.restore, randomness=randomness)
                        unreached = [n for n, each in seen.items() if each.stride(0) == 0]
                        streams.restore_random_state(drawn, device)
                        del seen
                    if unreached:
                        check_unreached(function, model, unreached, batch)
            except Exception as error:  # whatever a model can raise; the loop tells
                if fallback.is_no_memory(error):
                    raise
                if isinstance(error, OutOfReach) and not swap:
                    swap, per_sample = True, None
                    if state is not None and start == 0:
                        streams.restore_random_state(state, device)
                    continue
                failed = error
                break
            if start == 0:
                places = out(rows) if out else {}
            for name, each in rows.items():
                if out is None and step >= size:
                    places[name] = each.detach().to(dtype or each.dtype)
                    continue
                if name not in places:
                    places[name] = each.new_empty((size, *each.shape[1:]), dtype=dtype)
                with torch.no_grad():
                    places[name][start : start + step].copy_(each)
            del results, rows  # or they would lie beside those of the next chunk
            start, each = start + step, None
    if failed is None:
        return places.get("", places)
    if state is not None:
        streams.restore_random_state(state, device)
    return fallback.to_loop(otherwise, failed, model)


@contextlib.contextmanager
def running(
    model: nn.Module, names: Collection[str]
) -> Iterator[tuple[Snapshot, dict[str, Tensor], dict[str, Tensor]]]:
    """Let a block run a model under transforms, and put it back as it was.

    Yields the state of the model; its parameters of these names and its buffers, detached.
    """
    with preserved(model, names) as snapshot, batchable_recurrence(model), eager():
        own, params, buffers = dict(model.named_parameters()), {}, {}
        for name in names:
            params[name] = own[name].detach()
        for name, buffer in model.named_buffers():
            buffers[name] = buffer.detach()
        with torch.enable_grad():
            yield snapshot, params, buffers


def reaching(
    function: Function, model: nn.Module, names: Collection[str], *, swap: bool = False
) -> Function:
    """Make `function(model, *sample)` one of `(params, buffers, *sample)`.

    Wherever the model meets its own parameters, the tensors in their place are used, or it is
    refused; with `swap`, they stand in the modules, too. And it writes neither into the buffers of
    other samples nor into the caller's data.
    """
    own = dict(model.named_parameters())
    ids = {id(tensor): name for name, tensor in (*own.items(), *model.named_buffers())}
    hooked = [name for name in names if own[name]._backward_hooks]
    wanted = {id(own[name]) for name in names}

    def run(params: dict[str, Tensor], buffers: dict[str, Tensor], *sample: Tensor) -> Any:
        buffers = dict(zip(buffers, map(torch.clone, buffers.values()), strict=True))
        for name in hooked:
            for hook in own[name]._backward_hooks.values():
                params[name].register_hook(hook)
        with ParameterAliases(ids, params | buffers):
            if swap:
                swap_registered(model, ids, params | buffers)
            value = function(model, *map(torch.clone, sample))
        # The parameters themselves require a gradient while others are differentiated in their
        # place. So one that was used as it is, by a view of it or in an autograd Function, has left
        # a graph.
        bare = debug_unwrap(value) if isinstance(value, Tensor) else None
        nodes = graph(bare) if bare is not None and bare.requires_grad else ()
        if any(id(getattr(node, "variable", None)) in wanted for node in nodes):
            raise OutOfReach("a parameter is used as it is, out of reach of the transforms")
        return value

    return run


def check_unreached(
    function: Function, model: nn.Module, names: Collection[str], batch: Batch
) -> None:
    """Raise `OutOfReach` if parameters without a gradient under transforms have one without.

    A scripted function is called past all of them. The first sample is run.
    """
    device = batch[0].device
    state = streams.random_state(device)
    with preserved(model, names):
        own = dict(model.named_parameters())
        leaves = [own[name] for name in names]
        value = function(model, *(tensor[0].detach().clone() for tensor in batch))
        grads = [None]
        if value.requires_grad:
            grads = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
    streams.restore_random_state(state, device)
    if any(each is not None and each.any() for each in grads):
        raise OutOfReach("a parameter is used as it is, out of reach of the transforms")


def map_samples(
    per_sample: Function,
    params: dict[str, Tensor],
    buffers: dict[str, Tensor],
    batch: Sequence[Any],
    restore: Callable[[], Any],
    *,
    randomness: str = "error",
) -> Any:
    """Run `per_sample(params, buffers, *sample)` for each sample of a batch, with `torch.vmap`.

    All samples share the parameters, and the buffers unless the model writes a sample's values into
    them: then each sample gets its own. `restore` puts the model back after each run.
    """
    if any(isinstance(leaf, Sequences) for leaf in batch):
        raise UnequalLengths
    for own in (False, True):
        dims = (None, 0 if own else None, *(0,) * len(batch))
        if own:
            size = len(batch[0])
            buffers = {name: each.expand(size, *each.shape) for name, each in buffers.items()}
        try:
            compute = vmap(per_sample, in_dims=dims, randomness=randomness)
            return compute(params, buffers, *batch)
        except RuntimeError as error:
            if own or not any(fragment in str(error) for fragment in _UNBATCHED):
                raise
        finally:
            restore()
    raise AssertionError("the second attempt returns or raises")
