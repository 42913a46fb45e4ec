"""A model as a function of its parameters, for `torch.func`, and what it takes to run it so.

As in lesson 3, a per-sample gradient is `vmap(grad(functional(...)))`. Two things differ: the
model's own parameters become the differentiated tensors, wherever code refers to them; and whatever
cannot be guaranteed raises, so that the next way takes over (`helpers.transforms.problem`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap

from helpers.transforms import switches
from helpers.transforms.checks import Parts
from helpers.transforms.known_wrong import SCRIPTED, VMAP, Refusal, Watched
from helpers.transforms.loop import graph
from helpers.transforms.recurrence import RECURRENT, add_zero_state, check_forward

if TYPE_CHECKING:
    from helpers.transforms.problem import Problem

Tensors = dict[str, Tensor]


def functional(problem: "Problem", *contexts: str) -> Callable[..., Any]:
    """Turn a problem's function into one of `(params, buffers, *sample)`, to transform.

    Each sample has buffers of its own. What is known to be wrong under `vmap`, or in further
    `contexts`, raises, and so does a parameter out of reach.
    """
    parts = problem.parts
    tensors = parts.parameters | parts.buffers
    differentiated = {id(tensors[name]) for name in problem.params}

    def run(params: Tensors, buffers: Tensors, *sample: Tensor) -> Any:
        substitutes = dict(params)
        for name, buffer in buffers.items():
            substitutes[name] = buffer.clone()
        leaves = [leaf.clone() for leaf in sample]
        watched = Watched(VMAP, *contexts, parameters=parts.parameters.values())
        with watched, standing_in(tensors, substitutes):
            value = problem.function(problem.model, *leaves)
            if not isinstance(value, Tensor):
                return value
            value = value.clone()  # it may be a parameter itself
        problem.note(value)
        # The parameters themselves require a gradient: one used as is, by a view, left a graph.
        outside = debug_unwrap(value)
        if outside.requires_grad:
            for node in graph(outside):
                if id(getattr(node, "variable", None)) in differentiated:
                    raise Refusal("a parameter is used through a view made earlier")
        return value

    return run


@contextmanager
def standing_in(tensors: Mapping[str, Tensor], substitutes: Mapping[str, Tensor]) -> Iterator[None]:
    """Swap other tensors in for a model's, by name; identity, class and attributes stay."""
    try:
        # Where torch.utils.swap_tensors ends, which swaps classes and attributes as well.
        from torch._C import _swap_tensor_impl as swap  # noqa: PLC2701
    except ImportError as error:
        raise Refusal("this torch cannot exchange tensors") from error

    def exchange(tensor: Tensor, substitute: Tensor) -> None:
        swap(tensor, substitute)
        own, other = vars(tensor), vars(substitute)
        if own and other:
            for name in own.keys() & other.keys():  # what a wrapper wraps
                own[name], other[name] = other[name], own[name]

    swapped = []  # so that an error in the middle undoes what was done before it
    torch.clear_autocast_cache()  # it refers to tensors weakly, and such tensors cannot be swapped
    try:
        for name, substitute in substitutes.items():
            exchange(tensors[name], substitute)
            swapped.append((tensors[name], substitute))
        yield
    finally:
        torch.clear_autocast_cache()
        for tensor, substitute in reversed(swapped):
            exchange(tensor, substitute)


class VmapSupport:
    """What a model needs to run under `vmap`; raises a refusal for what cannot run there.

    Args:
        parts: Those of the model.
        code: All that the model, and what calls it, reach; see `reach.reached`.
        device: Where the samples are.
    """

    def __init__(self, parts: Parts, code: list[Any], device: torch.device) -> None:
        self._recurrent = []
        self._switches = [] if device.type == "cpu" else [switches.plain_attention]
        for module in parts.modules.values():
            if isinstance(module, RECURRENT):
                check_forward(module)
                self._recurrent.append(module)
                self._switches.append(switches.native_kernels)
            if isinstance(module, nn.TransformerEncoder) and not module.mask_check:
                raise Refusal("a TransformerEncoder may zero padding, but not under vmap")
        for value in code:
            if isinstance(value, SCRIPTED):
                raise Refusal("scripted code has wrong gradients under transforms")
            if isinstance(value, FunctionType) and hasattr(value, "_torchdynamo_orig_callable"):
                self._switches.append(switches.uncompiled)

    @contextmanager
    def given(self) -> Iterator[None]:
        """Give recurrent layers an initial state, and change torch's switches, for a block."""
        with ExitStack() as stack:
            for layer in self._recurrent:
                hook = layer.register_forward_pre_hook(add_zero_state, with_kwargs=True)
                stack.enter_context(hook)
            for switch in self._switches:
                stack.enter_context(switch)
            yield
