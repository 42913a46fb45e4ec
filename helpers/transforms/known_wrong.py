"""Functions of torch with wrong gradients: a few are corrected, the others lead to the next way."""

import functools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import debug_unwrap
from torch.overrides import TorchFunctionMode

AUTOGRAD = "in plain autograd, and under transforms"
VMAP, JACREV = "under vmap", "under vmap over jacrev"
OUTSIDE = "where autograd runs outside vmap"
SCRIPTED = torch.jit.ScriptFunction, torch.jit.ScriptModule  # optimized for one kind of run
BY_HAND = "BatchNorm", "WhileLoop"  # graph nodes for which the loop needs `Watched`


class Refusal(Exception):
    """The engine cannot guarantee the result in one way; the next way may."""


class Watched(TorchFunctionMode):
    """Refuse functions of torch that are wrong in `contexts`, and writes to `parameters`."""

    def __init__(self, *contexts: str, parameters: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._contexts = (AUTOGRAD, *contexts)
        self._refuses_compiled = VMAP in contexts
        self._refuses_operators = OUTSIDE in contexts
        self._parameters = {id(parameter) for parameter in parameters}

    # This runs for each operation, so what it asks first is what takes no time.
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, unless it is refused."""
        kwargs = kwargs or {}
        if self._refuses_compiled and torch.compiler.is_dynamo_compiling():
            raise Refusal("compiled code would be traced instead of run as written")
        if func in KNOWN_WRONG:
            context, is_wrong = KNOWN_WRONG[func]
            if context in self._contexts and is_wrong(*args, **kwargs):
                raise Refusal(f"torch.{func.__name__} has wrong gradients {context}")
        if self._refuses_operators and _is_custom(func):
            raise Refusal(f"the operator {func} may have a rule for vmap of its own")
        if self._parameters:
            first = args[0] if args else None
            out = kwargs.get("out")
            if id(first) in self._parameters or id(out) in self._parameters:
                self._check_write(func, out)
        return CORRECTED.get(func, func)(*args, **kwargs)

    def _check_write(self, func: Callable[..., Any], out: Any) -> None:
        """Refuse a function that may write into a parameter: its first argument, or `out`."""
        name = getattr(func, "__name__", "")
        in_place = name.endswith("_") and not name.endswith("__")
        # A write into the data of a parameter would leave no trace.
        reads_data = func == Tensor.data.__get__
        if in_place or reads_data or out is not None or name in ("__setitem__", "__set__"):
            raise Refusal(f"{name} of a parameter, which may write into it")


@functools.lru_cache(1024)
def _is_custom(func: Callable[..., Any]) -> bool:
    """Tell whether a function is an operator of a library other than torch's own."""
    library = str(getattr(func, "__module__", ""))
    # `profiler` names parts of a forward pass, as DataParallel does.
    own = (".aten", ".prims", ".profiler")
    return library.startswith("torch._ops.") and not library.endswith(own)


def _is_unknown(tensor: Tensor) -> bool:
    """Tell whether a tensor may require a gradient in an outer transform alone."""
    return debug_unwrap(tensor) is not tensor and not tensor.requires_grad


def _always(*_: Any, **__: Any) -> bool:
    return True


def _is_ambiguous(A: Tensor, B: Tensor, **_: Any) -> bool:
    """Tell whether `vmap` may take matrices for a batch of vectors."""
    return A.dim() != B.dim() or A.shape[:-2] != B.shape[:-2]


def _is_scalar(input: Tensor, *_: Any, **__: Any) -> bool:
    return not input.dim()


def _has_options(_: Tensor, weight: Tensor, padding_idx: int | None = None, **kwargs: Any) -> bool:
    """Tell whether `F.embedding` reads indices in a backward pass of its weight."""
    has_options = padding_idx is not None or bool(kwargs.get("scale_grad_by_freq"))
    return has_options and (weight.requires_grad or debug_unwrap(weight) is not weight)


def _has_own_rule(kind: type[torch.autograd.Function], *_: Any, **__: Any) -> bool:
    """Tell whether a custom function may hide its backward pass in a `vmap` rule of its own."""
    return not kind.generate_vmap_rule


_BY_NAME = {
    "index_fill": VMAP,  # the value of one sample goes to all
    "prelu": JACREV,
    "cdist": JACREV,
    "lu_solve": JACREV,
    "select_scatter": OUTSIDE,
    "as_strided": OUTSIDE,
    "as_strided_copy": OUTSIDE,
    "embedding": OUTSIDE,  # of a computed table; layer rules handle the others first
}
OF_AUTOGRAD = {Tensor.requires_grad.__get__, Tensor.grad_fn.__get__, Tensor.is_leaf.__get__}
KNOWN_WRONG: dict[Callable[..., Any], tuple[str, Callable[..., bool]]] = {
    F.embedding: (OUTSIDE, _has_options),
    torch.linalg.solve: (VMAP, _is_ambiguous),
    torch.roll: (VMAP, _is_scalar),  # which rolls the samples
    Tensor.roll: (VMAP, _is_scalar),
    torch.ops.higher_order.while_loop: (AUTOGRAD, _always),
    torch.ops.higher_order.custom_function_call: (OUTSIDE, _has_own_rule),
}
"""Functions of torch, where they are wrong, and for which arguments; see the reference, page 6b."""
for getter in OF_AUTOGRAD:
    KNOWN_WRONG[getter] = (OUTSIDE, _is_unknown)
for name, context in _BY_NAME.items():
    # Each is a function, a method, an operator, or several of these.
    for owner in (torch, Tensor, torch.linalg, torch.ops.aten):
        if hasattr(owner, name):
            KNOWN_WRONG[getattr(owner, name)] = (context, _always)


def _norm(func: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Normalize images with contiguous gradients: torch misreads others for a batch of one."""
    outputs = func(input.contiguous(), *args, **kwargs)
    return outputs.flatten().view(outputs.shape)


CORRECTED: dict[Callable[..., Any], Callable[..., Any]] = {}
"""Corrections of what is wrong even without a transform, for the loop, too."""
for norm in (F.batch_norm, F.instance_norm, torch.batch_norm, torch.instance_norm):
    CORRECTED[norm] = partial(_norm, norm)
