"""The fallback from one way to the next: which errors lead there, and the warning."""

import inspect
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn

from helpers.transforms.known_wrong import Refusal
from helpers.transforms.reach import is_own

_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "ALLOC_FAILED")


class FallbackWarning(UserWarning):
    """A slower or larger method was used; `__cause__` is the error that led to it, if any."""


_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silent() -> Iterator[None]:
    """Suppress fallback warnings in a block, in this thread."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def leads_to_next_way(error: Exception) -> bool:
    """Tell whether the next way is tried: not if memory ran out, or the bug is ours."""
    # A model may raise any of torch's errors itself. If it does, the loop raises the same.
    if isinstance(error, MemoryError | torch.OutOfMemoryError | torch.AcceleratorError):
        return False
    text = str(error)
    if any(words in text for words in _NO_MEMORY):
        return False
    # A RuntimeError in a frame of ours comes from torch, which we called.
    return isinstance(error, Refusal | RuntimeError) or not _is_ours(error)


def explain(was_recorded: bool, error: Exception, model: nn.Module) -> str:
    """Say which module a way failed at, why, and what was done instead; see `describe`."""
    module, why = describe(error, model)
    if was_recorded:
        return (
            f"{module} cannot be recorded layer by layer, so its gradients were formed, which "
            f"takes more memory ({why})"
        )
    by = "the helpers" if isinstance(error, Refusal) else "torch.vmap"
    return (
        f"{module} cannot be batched by {by}, so the samples were taken one after the other, "
        f"which is slower ({why})"
    )


def describe(error: Exception, model: nn.Module) -> tuple[str, str]:
    """Return where an error was raised and its first line; clear the tracebacks of the attempt.

    Not to be called in `except`, or nothing would be cleared.
    """
    place = find_place(error, model)
    # The frames of tracebacks hold the tensors of the attempt. An error that the caller handles,
    # which is the context of ours, keeps its traceback.
    handled = sys.exception()
    current = error
    while current is not None and current is not handled:
        current.__traceback__ = None
        current = current.__context__
    first_line, _, _ = str(error).strip().partition("\n")
    return place, f"{type(error).__name__}: {first_line}"


def add_place(error: Exception, model: nn.Module) -> None:
    """Add a note to an error of the model or the loss: no transform is involved."""
    cause = error
    seen = set()
    while cause is not None and id(cause) not in seen:  # errors may be each other's cause
        seen.add(id(cause))
        if "Refusal" in type(cause).__name__:  # which Dynamo wraps
            return
        cause = cause.__cause__ or cause.__context__
    if leads_to_next_way(error):
        error.add_note(
            f"{find_place(error, model)} raised this for a batch of one, without any transform: "
            "fix the model or the loss"
        )


def find_place(error: Exception, model: nn.Module) -> str:
    """Name the innermost module in whose code an error was raised."""
    names = {id(module): name for name, module in model.named_modules()}
    place = "the model" if isinstance(error, Refusal) else "the loss or the backward pass"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in names:
            place = names[id(module)] or "the model"
    return place


def warn(
    text: str, cause: Exception | None = None, category: type[Warning] = FallbackWarning
) -> None:
    """Warn at the line that called the helpers."""
    if _silent.get():
        return
    warning = category(text)
    warning.__cause__ = cause
    level = 2  # 1 is this function
    frame = inspect.currentframe().f_back
    while frame.f_back is not None and _is_between(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
        level += 1
    warnings.warn(warning, stacklevel=level)


def _is_between(module_name: str) -> bool:
    """Tell whether a module lies between the caller of the helpers and a warning."""
    return is_own(module_name) or module_name.startswith(("torch.", "contextlib"))


def _is_ours(error: Exception) -> bool:
    """Tell whether the innermost frame lies in helpers, other than where `Watched` calls torch."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        innermost = frame
    name = innermost.f_globals.get("__name__", "")
    calls_torch = name == Refusal.__module__ and innermost.f_code.co_name == "__torch_function__"
    return is_own(name) and not calls_torch
