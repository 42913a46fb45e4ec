"""Loops that torch has as operators, run as loops, so that each step has its gradient."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def _map(
    function: Callable[..., Any], xs: Sequence[Tensor], shared: Sequence[Any], **_: object
) -> Any:
    """Do what the operator `map` does.

    Where nothing is compiled, its own gives no gradient to what its function closes over. Since
    2.15 it is told, besides, which arguments the function writes into.
    """
    return _stacked([function(*row, *shared) for row in zip(*xs, strict=True)])


def _scan(
    combine: Callable[..., Any],
    init: Sequence[Tensor],
    xs: Sequence[Tensor],
    additional_inputs: Sequence[Any] = (),
) -> tuple[Any, Any]:
    """Do what the operator `scan` does, likewise."""
    carry, outputs = init, []
    for row in zip(*xs, strict=True):
        carry, output = combine(*_leaves(carry), *row, *additional_inputs)
        outputs.append(output)
    return carry, _stacked(outputs)


def _while(
    condition: Callable[..., Any],
    body: Callable[..., Any],
    carried: Sequence[Any],
    shared: Sequence[Any],
    **_: object,
) -> Any:
    """Do what the operator `while_loop` does, likewise."""
    while condition(*_leaves(carried), *shared):
        carried = body(*_leaves(carried), *shared)
    return carried


def _leaves(tree: Any) -> list[Any]:
    """List the tensors of what a loop hands on, in the order in which torch takes them."""
    if not isinstance(tree, dict | list | tuple):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree
    return [leaf for part in parts for leaf in _leaves(part)]


def _stacked(rows: Sequence[Any]) -> Any:
    """Stack the tensors of trees, which are all alike."""
    first = rows[0]
    if isinstance(first, Tensor):
        return torch.stack(rows)
    if isinstance(first, dict):
        return {key: _stacked([row[key] for row in rows]) for key in first}
    return type(first)(map(_stacked, zip(*rows, strict=True)))


LOOPS = {
    getattr(torch.ops.higher_order, name): loop
    for name, loop in {"map_impl": _map, "scan": _scan, "while_loop": _while}.items()
    if hasattr(torch.ops.higher_order, name)
}
"""Operators of torch that run a loop, and the loop that each runs."""
