"""Calls of torch seen on their way: to lead tensors to where they are used, and past a fault."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.overrides import TorchFunctionMode

_APPLY = torch.autograd.Function.apply.__func__.__code__
_NORMS = (F.batch_norm, F.instance_norm, torch.batch_norm, torch.instance_norm)


class Reach(TorchFunctionMode):
    """Give calls of torch the tensors that are meant in place of the ones that they get.

    `functional_call` swaps what is registered in a module. A parameter that also stands in a list,
    or in a module that a wrapped forward has closed over, is not swapped: it would be used as it
    is, and its gradient would be zero.

    Args:
        names: By the `id` of each tensor that may be met, the name of the one that is meant.
        tensors: Those that are meant, by name.
        cure: Whether to mend the backward of normalisations, see `Contiguous`.
    """

    def __init__(
        self, names: Mapping[int, str], tensors: Mapping[str, Tensor], *, cure: bool = True
    ) -> None:
        super().__init__()
        self.met: dict[int, str] = {}
        """The names of the tensors that were met, by the `id` of each."""
        self.met_norm = False
        """Whether a normalisation was met."""
        self.captured: set[str] = set()
        """The names of tensors that a function closes over and that a `torch.autograd.Function` was
        given: it is not led to those that are meant, since no mode sees its call."""
        self._names, self._cure = names, cure
        self._meant = {
            number: tensors[name]
            for number, name in names.items()
            if name in tensors and id(tensors[name]) != number
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch."""
        swapped = self._swapped(args)
        if kwargs:
            kwargs = dict(zip(kwargs, self._swapped([*kwargs.values()]), strict=True))
        if swapped is not args and not torch.is_grad_enabled() and _in_function():
            self.captured |= {self._names[id(value)] for value in args if id(value) in self._meant}
        args = swapped
        if func is torch.prelu and peek_interpreter_stack() is not None:
            func = _prelu
        if func not in _NORMS:
            return self._call(func, args, kwargs or {})
        self.met_norm = True
        if not self._cure:
            return func(*args, **(kwargs or {}))
        kwargs = {**(kwargs or {})}
        images, *rest = args or [kwargs.pop("input")]
        return _cured(func(images.contiguous(), *rest, **kwargs))

    def _call(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function that is given the tensors that are meant."""
        return func(*args, **kwargs)

    def _swapped(self, values: Any) -> Any:
        """Return a list or a tuple with the tensors that are meant."""
        meant, swapped = self._meant, None
        for index, value in enumerate(values):
            if type(value) in (list, tuple):
                other = self._swapped(value)
            else:
                other = meant.get(id(value), value)
                if other is not value:
                    self.met[id(value)] = self._names[id(value)]
            if other is not value:
                swapped = swapped or [*values]
                swapped[index] = other
        return values if swapped is None else type(values)(swapped)


def _prelu(inputs: Tensor, weight: Tensor) -> Tensor:
    """Compute `torch.prelu` by what it is made of.

    Under `vmap` over `jacrev`, torch's own backward sums over the wrong dimension: it raises, or
    where there are as many outputs as samples returns wrong numbers.
    """
    if weight.dim() == 1 and inputs.dim() > 1:
        weight = weight.view(-1, *(1,) * (inputs.dim() - 2))
    return torch.where(inputs > 0, inputs, weight * inputs)


def _in_function() -> bool:
    """Say whether the forward of a `torch.autograd.Function` is running."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code is _APPLY:
            return True
        frame = frame.f_back
    return False


def _cured(outputs: Tensor) -> Tensor:
    """Let the gradient at the outputs of a normalisation lie in memory in order."""
    if peek_interpreter_stack() is not None:
        return Contiguous.apply(outputs)
    # In plain autograd, what a function returns as a view could not be written into, as by
    # `nn.ReLU(inplace=True)`.
    if outputs.requires_grad:
        outputs.register_hook(torch.Tensor.contiguous)
    return outputs


class Contiguous(torch.autograd.Function):
    """The identity, whose gradient lies in memory in the order of its dimensions.

    On a CPU, torch's backward of batch and instance normalisation reads the gradient of a single
    image in the wrong order where it lies in another one than the image: in that of tokens, as
    behind `flatten(2).transpose(1, 2)`, or in the usual one, where the image has its channels last.
    Right numbers in permuted places, for a batch of one in plain autograd, and under `vmap`. So
    both are put in the usual order.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(outputs: Tensor) -> Tensor:
        """Return a view, since an input returned as it is would be copied."""
        return outputs.view_as(outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> Tensor:
        """Copy the gradient, if it has to be."""
        return grads.contiguous()
