"""What cannot be batched: where it is and why, in words, for those who get it from a loop."""

import contextlib
import functools
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

_WRITES = "writes what belongs to one sample into a tensor of all samples"
# What stands in torch's messages, and what the model does to get it.
_CAUSES = {
    ".item()": "reads numbers out of tensors, with .item(), float() or if",
    "data-dependent control flow": "decides by the values of a tensor",
    "dynamic shape": "makes shapes that depend on values",
    "vmap: inplace arithmetic": _WRITES,
    "doesn't match the broadcast shape": _WRITES,
    "vmap: aten::": _WRITES,
    "mutate a captured": "writes into a tensor that is no parameter or buffer of its own",
    # Before 2.13, checkpointing saved its inputs by such a function.
    "_NoopSaveInputs": "uses activation checkpointing, or hooks on saved tensors",
    "setup_context": "uses a torch.autograd.Function without setup_context",
    "generate_vmap_rule": "uses a torch.autograd.Function without a rule for vmap",
    "saved_tensors_hooks": "uses activation checkpointing, or hooks on saved tensors",
    "saved tensor hooks": "uses activation checkpointing, or hooks on saved tensors",
    "Checkpoint": "uses activation checkpointing",
    "Jitted": "is a scripted module",
    "DataParallel": "is wrapped in DataParallel: take its .module",
    "sparse": "uses sparse tensors",
    "Sparse": "uses sparse tensors",
    "nested": "uses nested tensors",
    "memory_format": "asks for an order in memory, such as channels_last",
    "UnequalLengths": "has samples of unequal length",
    "OutOfReach": "uses a parameter past torch.func: by a view of it, or in a scripted function",
    "backward()": "calls backward() in its forward",
    "requires_grad_()": "calls requires_grad_() in its forward",
    "BackwardHook": "has full backward hooks",
    "randomness error mode": "draws random numbers, from a seed of its own",
    "is a view": "has full backward hooks, or writes into a view",
}
ELSEWHERE = "the loss, or the backward pass,"
"""The place of what no module has raised."""
_PASSED_ON = ("__torch_function__", "_call")  # of modes, which call what a model calls
_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")


class FallbackWarning(UserWarning):
    """A model, or a part of it, could not be batched: samples were taken one after the other."""


_warned: ContextVar[set[str] | None] = ContextVar("warned", default=None)


def warning_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let each call of a function warn of a thing once, however many of its chunks meet it."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if _warned.get() is not None:
            return function(*args, **kwargs)
        token = _warned.set(set())
        try:
            return function(*args, **kwargs)
        finally:
            _warned.reset(token)

    return run


def is_no_memory(error: Exception) -> bool:
    """Return whether memory is what was missing: a loop is no answer to that."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        words in str(error) for words in _NO_MEMORY
    )


def to_loop(compute: Callable[[], Any], error: Exception, model: nn.Module) -> Any:
    """Compute in a loop what failed under `vmap`, and warn of it.

    What the loop raises too is no matter of `vmap`, and is raised.
    """
    place, cause = find_place(error, model), find_cause(error)
    error.__traceback__ = None  # it holds the tensors of the attempt
    result = compute()
    warn(
        f"the samples were taken one after the other, which is slower: {place} {cause}, which "
        "torch.vmap cannot transform"
    )
    return result


def add_place(error: Exception, model: nn.Module) -> None:
    """Add to an error of the model itself, not of `helpers`, that no transform is to blame."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    code, here = step.tb_frame.f_code, step.tb_frame.f_globals.get("__name__", "")
    if not here.startswith("helpers.") or code.co_name in _PASSED_ON:
        error.add_note(
            f"{find_place(error, model)} raised this for a batch of one, without any transform: "
            "mend the model or the loss"
        )


def find_place(error: Exception, model: nn.Module) -> str:
    """Name the innermost module in whose code an error was raised."""
    names = {id(module): name for name, module in model.named_modules()}
    place = None
    step = error.__traceback__
    while step is not None:
        module = step.tb_frame.f_locals.get("self")
        if id(module) in names and isinstance(module, nn.Module):
            place = names[id(module)] or "the model"
        step = step.tb_next
    # What is told by the result, or by the samples.
    told = {"OutOfReach": "the model", "UnequalLengths": "the batch"}
    return place or told.get(type(error).__name__, ELSEWHERE)


def find_cause(error: Exception) -> str:
    """Return what a model does, given the message of torch."""
    says = f"{type(error).__name__} {error}"
    fitting = (cause for words, cause in _CAUSES.items() if words in says)
    return next(fitting, "does something that has no rule for batches")


def warn(text: str) -> None:
    """Warn of a fallback at the line of code that called these helpers."""
    warned = _warned.get()
    if warned is not None:
        if text in warned:
            return
        warned.add(text)
    warnings.warn(text, FallbackWarning, stacklevel=_outside())


def running_module() -> str:
    """Name the kind of the innermost module that is running."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            return type(module).__name__
        frame = frame.f_back
    return ELSEWHERE


def _outside() -> int:
    """Count the frames up to the first that is not in `helpers`."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("helpers.", "torch.", "contextlib")
    ):
        level, frame = level + 1, frame.f_back
    return level


@contextlib.contextmanager
def slow_operations_named() -> Iterator[None]:
    """Name the layer where torch warns of an operation that has no rule for `vmap`."""
    found: dict[str, str] = {}  # by operation, what uses it; a backward comes behind its forward

    def show(message: Warning | str, *rest: Any) -> None:
        operation = re.search(r"batching rule for (?:aten::)?([\w:]+)", str(message))
        if operation is None:
            heard(message, *rest)
        else:
            found.setdefault(operation[1].removesuffix("_backward"), running_module())

    with warnings.catch_warnings():
        warnings.filterwarnings("always", message="There is a performance drop")
        heard, warnings.showwarning = warnings.showwarning, show
        yield
    for operation, place in found.items():
        warn(
            f"{place} uses {operation}, which torch.vmap takes one sample after the other: that "
            "is slower"
        )
