"""What cannot be batched: where it is and why, in words, for those who get it from a loop."""

import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

# What stands in torch's messages, and what the model does to get it.
_CAUSES = {
    ".item()": "reads numbers out of tensors, with .item(), float() or if",
    "data-dependent control flow": "decides by the values of a tensor",
    "dynamic shape": "makes shapes that depend on values",
    "vmap: inplace arithmetic": "writes what belongs to one sample into a tensor of all samples",
    "doesn't match the broadcast shape": (
        "writes what belongs to one sample into a tensor of all samples"
    ),
    "vmap: aten::": "writes what belongs to one sample into a tensor of all samples",
    "mutate a captured": "writes into a tensor that is no parameter or buffer of its own",
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
    "backward()": "calls backward() in its forward",
    "requires_grad_()": "calls requires_grad_() in its forward",
    "BackwardHook": "has full backward hooks",
    "is a view": "has full backward hooks, or writes into a view",
}
_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")


class FallbackWarning(UserWarning):
    """A model could not be batched, and its samples were taken one after the other."""


def is_no_memory(error: Exception) -> bool:
    """Say whether memory is what was missing: a loop is no answer to that."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        words in str(error) for words in _NO_MEMORY
    )


def instead(compute: Callable[[], Any], error: Exception, models: Iterable[nn.Module]) -> Any:
    """Compute in a loop what failed under `vmap`, and warn of it.

    Args:
        compute: The loop. What it raises too is no matter of `vmap`, and is raised.
        error: What was raised under `vmap`.
        models: The models whose modules may have raised it.

    Returns:
        What `compute` returned.
    """
    place, cause = find_place(error, models), find_cause(error)
    error.__traceback__ = None  # it holds the tensors of the attempt
    result = compute()
    warnings.warn(
        f"the samples were taken one after the other, which is slower: {place} {cause}, which "
        "torch.vmap cannot transform",
        FallbackWarning,
        stacklevel=_outside(),
    )
    return result


def find_place(error: Exception, models: Iterable[nn.Module]) -> str:
    """Name the innermost module in whose code an error was raised."""
    names: dict[int, str] = {}
    for model in models:
        for name, module in model.named_modules():
            names.setdefault(id(module), name.removeprefix("stateless_model").lstrip("."))
    place = None
    step = error.__traceback__
    while step is not None:
        module = step.tb_frame.f_locals.get("self")
        if id(module) in names and isinstance(module, nn.Module):
            place = names[id(module)] or "the model"
        step = step.tb_next
    if place is None and "stateless API" in str(error):  # it refuses before it runs any module
        place = "the model"
    return place or "the loss, or the backward pass,"


def find_cause(error: Exception) -> str:
    """Say what a model does, given what torch says of it."""
    says = f"{type(error).__name__} {error}"
    fitting = (cause for words, cause in _CAUSES.items() if words in says)
    return next(fitting, "does something that has no rule for batches")


def _outside() -> int:
    """Count the frames up to the first that is not in `helpers`."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("helpers.", "torch.")
    ):
        level, frame = level + 1, frame.f_back
    return level
