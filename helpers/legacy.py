"""The surface of functorch (2022), for a torch that no longer has it.

torch ships `functorch` as deprecated and may drop it. `functorch()` returns torch's own module as
long as it is there, and else this one, whose functions have the same names, arguments and results.
"""

import copy
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from helpers.transforms.samples import standing_in

__all__ = [
    "combine_state_for_ensemble",
    "functorch",
    "grad",
    "make_functional",
    "make_functional_with_buffers",
    "vmap",
]


def functorch() -> ModuleType:
    """Return torch's `functorch` if it still has the legacy functions, else this module."""
    try:
        import functorch
    except ImportError:
        return sys.modules[__name__]
    return functorch if hasattr(functorch, "make_functional") else sys.modules[__name__]


class FunctionalModuleWithBuffers(nn.Module):
    """A model without tensors of its own: `fmodel(params, buffers, *args)`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.param_names = tuple(name for name, _ in model.named_parameters())
        self.buffer_names = tuple(name for name, _ in model.named_buffers())
        memo: dict[int, Any] = {}  # what deepcopy takes for a copy that it has made
        for tensor in (*model.parameters(), *model.buffers()):
            memo[id(tensor)] = torch.empty_like(tensor, device="meta")
            if isinstance(tensor, nn.Parameter):
                memo[id(tensor)] = nn.Parameter(memo[id(tensor)], requires_grad=False)
        self.stateless_model = copy.deepcopy(model, memo)

    @staticmethod
    def _create_from(
        model: nn.Module, disable_autograd_tracking: bool = False
    ) -> tuple["FunctionalModuleWithBuffers", tuple[Tensor, ...], tuple[Tensor, ...]]:
        return make_functional_with_buffers(model, disable_autograd_tracking)

    def forward(
        self, params: Iterable[Tensor], buffers: Iterable[Tensor], *args: Any, **kwargs: Any
    ) -> Any:
        """Run the model with these parameters and buffers, each in the order of its names."""
        names, tensors = (*self.param_names, *self.buffer_names), (*params, *buffers)
        # Views, since one tensor may be given twice.
        state = {name: each.view_as(each) for name, each in zip(names, tensors, strict=True)}
        model = self.stateless_model
        with standing_in(dict(model.named_parameters()) | dict(model.named_buffers()), state):
            return model(*args, **kwargs)


class FunctionalModule(FunctionalModuleWithBuffers):
    """A model without tensors of its own that never had buffers: `fmodel(params, *args)`."""

    def forward(self, params: Iterable[Tensor], *args: Any, **kwargs: Any) -> Any:
        """Run the model with these parameters, in the order of `param_names`."""
        return super().forward(params, (), *args, **kwargs)


def make_functional_with_buffers(
    model: nn.Module, disable_autograd_tracking: bool = False
) -> tuple[FunctionalModuleWithBuffers, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Split a model into a function, and copies of its parameters and of its buffers.

    Later changes to the model do not reach the result. Returns `fmodel`, called as
    `fmodel(params, buffers, *args)`; the parameters, which stop requiring gradients with
    `disable_autograd_tracking`; and the buffers.
    """
    params = tuple(
        nn.Parameter(each.detach().clone(), each.requires_grad and not disable_autograd_tracking)
        for each in model.parameters()
    )
    buffers = tuple(buffer.detach().clone() for buffer in model.buffers())
    return FunctionalModuleWithBuffers(model), params, buffers


def make_functional(
    model: nn.Module, disable_autograd_tracking: bool = False
) -> tuple[FunctionalModule, tuple[Tensor, ...]]:
    """Do the same for a model without buffers, where `fmodel` is called as `fmodel(params, *args)`.

    Raises:
        RuntimeError: The model has buffers.
    """
    _, params, buffers = make_functional_with_buffers(model, disable_autograd_tracking)
    if buffers:
        raise RuntimeError(
            "make_functional(model): `model` has buffers. "
            "Please use make_functional_with_buffers(model) instead."
        )
    return FunctionalModule(model), params


def combine_state_for_ensemble(
    models: Sequence[nn.Module],
) -> tuple[FunctionalModuleWithBuffers, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Stack the parameters and buffers of M models, each `(M, *shape)`, for `vmap` over the models.

    Raises:
        RuntimeError: There is no model, or they differ in class or mode.
    """
    expected = {  # in functorch's words and order, so that old code finds what it looks for
        "at least one model, got 0": len(models) > 0,
        "all models to have the same training/eval mode": len({m.training for m in models}) <= 1,
        "all models to be of the same class": len({type(m) for m in models}) <= 1,
    }
    for what, holds in expected.items():
        if not holds:
            raise RuntimeError(f"combine_state_for_ensemble: Expected {what}.")
    copies = [make_functional_with_buffers(model, True) for model in models]
    (fmodel, *_), *kinds = zip(*copies, strict=True)
    params, buffers = (
        tuple(torch.stack(tensors).detach() for tensors in zip(*kind, strict=True))
        for kind in kinds
    )
    return fmodel, params, buffers
