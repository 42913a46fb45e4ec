"""What `torch.compile` and `torch.cond` have wrapped, run as it is written for a while."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

Function = Callable[..., Any]


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Run what `torch.compile` has wrapped as it is written, and `torch.cond`, which calls it.

    What is scripted is not optimised, or a run under transforms leaves code in it that is wrong.
    """
    cond, compile_, stance = torch.cond, torch.compile, contextlib.nullcontext()
    if "torch._dynamo" in sys.modules:
        stance = torch.compiler.set_stance("force_eager")
    kind = type(torch.ops.higher_order.cond)  # what it ends in, for those who imported it by name
    call, torch.cond = kind.__call__, _branch
    kind.__call__ = lambda _, *args: _branch(*args)
    torch.compile = _as_it_is  # which torch's `scan` and `while_loop` call
    try:
        with stance, torch.jit.optimized_execution(False):
            yield
    finally:
        torch.cond, torch.compile, kind.__call__ = cond, compile_, call


def _as_it_is(function: Function | None = None, **_: object) -> Function:
    """Stand in for `torch.compile`, also as a decorator with options."""
    return (lambda decorated: decorated) if function is None else function


def _branch(pred: Any, true_fn: Function, false_fn: Function, operands: Sequence[Any] = ()) -> Any:
    """Do what `torch.cond` does."""
    return (true_fn if pred else false_fn)(*operands)
