"""A model that runs with other tensors in place of its own, as transforms need it."""

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from helpers.transforms.mended import MENDED

RECURRENT = (nn.RNNBase, nn.RNNCellBase)


class OutOfReach(RuntimeError):
    """A forward uses a parameter in a way that no transform follows."""


def on_meta(model: nn.Module) -> nn.Module:
    """Copy a model around tensors that have shapes and no numbers, to be called with others.

    A tensor with several names has them in the copy, too; weak references lead to modules of the
    copy, and what a forward has computed is marked as such, by an attribute.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:  # which deepcopy would refuse
                memo[id(value)] = value.detach()
                memo[id(value)].computed = True
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    for parameter in model.parameters():
        like = torch.empty_like(parameter, device="meta", requires_grad=False)
        memo[id(parameter)] = nn.Parameter(like, requires_grad=False)
    duplicate = copy.deepcopy(model, memo)
    for module in duplicate.modules():
        for name, value in vars(module).items():
            if isinstance(value, weakref.ref) and id(value()) in memo:
                vars(module)[name] = weakref.ref(memo[id(value())])
    return duplicate


class ParameterAliases(TorchFunctionMode):
    """Give calls of torch the tensors that are meant in place of parameters that are met.

    The parameters stay where they are, in their modules, in lists, in what functions close over,
    and code that asks for their class or identity gets the answer of every other day. `names` has
    the name of each by its `id`, `tensors` those that are meant, by name.
    """

    def __init__(self, names: Mapping[int, str], tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.met: set[str] = set()
        """The names of parameters and buffers that were met."""
        self._names, self._tensors = names, tensors

    def __enter__(self) -> "ParameterAliases":
        """Begin, for scripted functions too, which no mode sees."""
        self._scripted, begun = torch.jit.ScriptFunction.__call__, set()

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            if function not in begun:  # what was optimised for plain autograd is wrong here
                begun.add(function)
                function._debug_flush_compilation_cache()
            kwargs = dict(zip(kwargs, self._replaced([*kwargs.values()]), strict=True))
            return self._scripted(function, *self._replaced(args), **kwargs)

        torch.jit.ScriptFunction.__call__ = call
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        """End."""
        torch.jit.ScriptFunction.__call__ = self._scripted
        super().__exit__(*error)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch."""
        args = self._replaced(args)
        if kwargs:
            kwargs = dict(zip(kwargs, self._replaced([*kwargs.values()]), strict=True))
        return self._call(func, args, kwargs or {})

    def _call(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Call a function that is given the tensors that are meant, or what computes the same."""
        return MENDED.get(func, func)(*args, **kwargs)

    def _replaced(self, values: Any) -> Any:
        """Return a list or a tuple with the tensors that are meant."""
        replaced = None
        for index, value in enumerate(values):
            if type(value) in (list, tuple):
                other = self._replaced(value)
            elif (name := self._names.get(id(value))) is None or name not in self._tensors:
                continue
            else:
                self.met.add(name)
                other = self._tensors[name]
            if other is not value:
                replaced = replaced or [*values]
                replaced[index] = other
        return values if replaced is None else type(values)(replaced)


def swap_registered(
    model: nn.Module, names: Mapping[int, str], tensors: Mapping[str, Tensor]
) -> None:
    """Put other tensors where a model has its parameters and buffers, as `functional_call` does.

    For calls that no mode sees, such as that of a `torch.autograd.Function`. It lasts until the
    model is put back. `names` and `tensors` are as in `ParameterAliases`.
    """
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):  # it has its tensors elsewhere
            continue
        for own in (module._parameters, module._buffers):
            for key, tensor in own.items():
                if names.get(id(tensor)) in tensors:
                    own[key] = tensors[names[id(tensor)]]


def graph(value: Tensor) -> Iterator[Any]:
    """Yield the nodes of the graph behind a tensor, in plain autograd."""
    seen, waiting = set(), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
            yield node


@contextmanager
def batchable_recurrence(model: nn.Module) -> Iterator[None]:
    """Let recurrent layers, where there are any, run on kernels that `vmap` can batch.

    Those of oneDNN and cuDNN are one operation for all steps, without a rule for `vmap`. And the
    states that a layer makes for itself have no batch dimension, into which it then adds.
    """
    hooks, before = [], []
    for part in model.modules():
        if isinstance(part, RECURRENT):
            hooks.append(part.register_forward_pre_hook(add_zero_state, with_kwargs=True))
    try:
        for backend in (torch.backends.mkldnn, torch.backends.cudnn) if hooks else ():
            before.append((backend, backend.enabled))
            backend.enabled = False
        yield
    finally:
        for backend, enabled in before:
            backend.enabled = enabled
        for hook in hooks:
            hook.remove()


def add_zero_state(
    layer: nn.RNNBase | nn.RNNCellBase, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Give a recurrent layer an initial state with the batch dimension of `vmap`.

    That is the zeros which the layer would make, or the state that it is called with, and zeros.
    """
    inputs = args[0] if args else kwargs.get("input")
    given = args[1] if len(args) > 1 else kwargs.get("hx")
    if not isinstance(inputs, Tensor):
        return None
    if isinstance(given, tuple):
        start = tuple(state + inputs.new_zeros(state.shape) for state in given)
    elif given is not None:
        start = given + inputs.new_zeros(given.shape)
    else:
        if isinstance(layer, nn.RNNCellBase):
            lead, output_size = inputs.shape[:-1], layer.hidden_size
        else:
            layers = layer.num_layers * (2 if layer.bidirectional else 1)
            batch = inputs.shape[:-1][0 if layer.batch_first else 1 :][:1]
            lead = (layers, *(batch if inputs.dim() == 3 else ()))
            output_size = layer.proj_size or layer.hidden_size
        start = inputs.new_zeros((*lead, output_size))
        if isinstance(layer, nn.LSTM | nn.LSTMCell):
            start = (start, inputs.new_zeros((*lead, layer.hidden_size)))
    return args[:1], {**kwargs, "hx": start}
