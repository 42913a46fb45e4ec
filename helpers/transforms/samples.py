"""Samples of a batch under `torch.func`: turn a model into a function of its parameters.

As in lesson 3, a per-sample gradient is `vmap(grad(functional(...)))`. Two things differ: the
model's own parameters become the differentiated tensors, wherever code refers to them; and whatever
cannot be guaranteed raises, so that the loop takes over (`helpers.transforms.loop`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap

from helpers.transforms import fallback, switches
from helpers.transforms import randomness as streams
from helpers.transforms.known_wrong import SCRIPTED, VMAP, Refusal, Watched, reached
from helpers.transforms.recurrence import RECURRENT, add_zero_state, check_forward
from helpers.transforms.restore import Snapshot, preserved
from helpers.transforms.sequences import Sequences

Function = Callable[..., Any]
Tensors = dict[str, Tensor]


def functional(
    function: Function, model: nn.Module, names: Collection[str], *contexts: str
) -> Function:
    """Turn `function(model, *sample)` into one of `(params, buffers, *sample)`, to transform.

    Each sample has buffers of its own. What is known to be wrong under `vmap`, or in further
    `contexts`, raises, and so does a parameter out of reach.
    """
    parameters = dict(model.named_parameters())
    tensors = parameters | dict(model.named_buffers())
    differentiated = set(map(id, map(tensors.get, names)))

    def run(params: Tensors, buffers: Tensors, *sample: Tensor) -> Any:
        substitutes = dict(params)
        for name, buffer in buffers.items():
            substitutes[name] = buffer.clone()
        watched = Watched(VMAP, *contexts, parameters=parameters.values())
        with watched, standing_in(tensors, substitutes):
            value = function(model, *map(torch.clone, sample))
            if not isinstance(value, Tensor):
                return value
            value = value.clone()  # it may be a parameter itself
        # The parameters themselves require a gradient: one used as is, by a view, left a graph.
        outside = debug_unwrap(value)
        for node in graph(outside) if outside.requires_grad else ():
            if id(getattr(node, "variable", None)) in differentiated:
                raise Refusal("a parameter is used through a view made earlier")
        return value

    return run


@contextmanager
def standing_in(tensors: Mapping[str, Tensor], substitutes: Mapping[str, Tensor]) -> Iterator[None]:
    """Swap other tensors in for a model's, by name; identity, class and attributes stay."""
    try:
        from torch._C import _swap_tensor_impl as swap  # where torch.utils.swap_tensors ends
    except ImportError as error:
        raise Refusal("this torch cannot exchange tensors") from error

    def exchange(tensor: Tensor, substitute: Tensor) -> None:
        swap(tensor, substitute)
        for name in vars(tensor).keys() & vars(substitute).keys():  # what a wrapper wraps
            vars(tensor)[name], vars(substitute)[name] = vars(substitute)[name], vars(tensor)[name]

    swapped = []
    torch.clear_autocast_cache()  # it refers to tensors weakly, and such tensors cannot be swapped
    try:
        for name, substitute in substitutes.items():
            exchange(tensors[name], substitute)
            swapped.append((tensors[name], substitute))
        yield
    finally:
        torch.clear_autocast_cache()
        for pair in swapped[::-1]:
            exchange(*pair)


@contextmanager
def running(
    model: nn.Module,
    names: Collection[str],
    *functions: Function,
    device: torch.device | None = None,
    randomness: str = "same",
) -> Iterator[tuple[Snapshot, Tensors, Tensors]]:
    """Let a block run a model in these functions under transforms, then restore the model.

    Yields its state; its parameters of these names and its buffers, detached. With a device, draws
    of NumPy and Python are refused unless `randomness` is `"same"`, and streams are restored if the
    block raises, unless it is `"error"`: then another thread may have moved them.
    """
    parameters, params, buffers = dict(model.named_parameters()), {}, {}
    for name in names:
        if parameters[name]._backward_hooks:
            raise Refusal(f"the parameter {name} has hooks on its gradient")
        params[name] = parameters[name].detach()
    for name, buffer in model.named_buffers():
        buffers[name] = buffer.detach()
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, RECURRENT):
                check_forward(module)
                hook = module.register_forward_pre_hook(add_zero_state, with_kwargs=True)
                stack.enter_context(hook)
                stack.enter_context(switches.native_kernels)
            if isinstance(module, nn.TransformerEncoder) and not module.mask_check:
                raise Refusal("a TransformerEncoder may zero padding, but not under vmap")
        for value in reached((model, *functions)):
            if isinstance(value, SCRIPTED):
                raise Refusal("scripted code has wrong gradients under transforms")
            if isinstance(value, FunctionType) and hasattr(value, "_torchdynamo_orig_callable"):
                stack.enter_context(switches.uncompiled)
        snapshot = stack.enter_context(preserved(model, names, *functions))
        stack.enter_context(torch.enable_grad())
        state = partial(streams.random_state, device, snapshot.generators) if device else list
        first = state()
        try:
            yield snapshot, params, buffers
            if randomness != "same" and not streams.alike(first, state(), outside_torch=True):
                raise Refusal("NumPy or Python draws random numbers, or another thread does")
        except Exception:
            if randomness != "error":
                streams.restore_random_state(first)
            raise


def batched(
    compute: Function,
    model: nn.Module,
    names: Collection[str],
    batch: tuple[Tensor, ...],
    *,
    otherwise: Callable[[], Any],
    chunk_size: int | None = None,
    randomness: str = "error",
    dtype: torch.dtype | None = None,
) -> Any:
    """Call a batched function for all samples, chunk by chunk, or use the loop.

    `compute(params, buffers, *chunk)` is a `vmap` of what `functional` made for these names, with
    the same `randomness`; it returns a tensor `(B, ...)` or a dictionary of such tensors. These are
    returned detached, in `dtype`, each in memory of its own. `otherwise` computes the same in a
    loop, also where there is no sample or no parameter.
    """
    size, device = len(batch[0]), batch[0].device
    if not size or not names:
        return otherwise()
    step, outputs = chunk_size or size, {}
    try:
        draws = {"device": device, "randomness": randomness}
        with running(model, names, compute, **draws) as (snapshot, params, buffers):
            if randomness == "same":
                first = streams.random_state(device, snapshot.generators)
            if Sequences in map(type, batch):
                raise Refusal("samples are of unequal length")
            # Each chunk is written where it belongs: to concatenate them takes the memory of all
            # results a second time. So `torch.vmap` is not told the chunk size.
            for start in range(0, size, step):
                if start and randomness == "same":  # what `torch.vmap` does for its chunks
                    streams.restore_random_state(first)
                chunk = []
                for leaf in batch:
                    chunk.append(leaf[start : start + step])
                results = compute(params, buffers, *chunk)
                snapshot.restore()
                is_tensor = isinstance(results, Tensor)
                results = {"": results} if is_tensor else results
                _write_chunk(results, outputs, slice(start, start + step), size, dtype)
                del results  # free them before the next chunk
        return outputs[""] if is_tensor else outputs
    except Exception as error:
        if not fallback.leads_to_loop(error):
            raise
        failed = error
    return fallback.to_loop(otherwise, failed, model)


def _write_chunk(chunk: Tensors, outputs: Tensors, rows: slice, size: int, dtype: Any) -> None:
    """Write a chunk's results into full-size tensors, which the first chunk allocates."""
    owners = set()
    for name, result in chunk.items():
        if name not in outputs:
            address = result.untyped_storage().data_ptr()
            # Views of one tensor, as of the gradient of a sum, are copied.
            is_own = address not in owners and 0 not in result.stride()
            owners.add(address)
            if len(result) == size and is_own and dtype in (None, result.dtype):
                outputs[name] = result.detach()
                continue
            outputs[name] = result.new_empty((size, *result.shape[1:]), dtype=dtype)
        outputs[name][rows] = result.detach()


def graph(value: Tensor) -> Iterator[Any]:
    """Yield the nodes of the graph behind a tensor."""
    visited, waiting = set(), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in visited:
            visited.add(node)
            waiting += [following for following, _ in node.next_functions]
            yield node
