"""Plain autograd on one sample: its backward pass, and the graph that tells what is in it."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from helpers.transforms.known_wrong import BY_HAND


def graph(value: Tensor) -> Iterator[Any]:
    """Yield the nodes of the graph behind a tensor."""
    visited = set()
    waiting = [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in visited:
            visited.add(node)
            for following, _ in node.next_functions:
                waiting.append(following)
            yield node


def is_by_hand(value: Tensor) -> bool:
    """Tell whether the graph has a node whose backward pass is wrong unless it is watched."""
    for node in graph(value):
        name = node.name()
        for kind in BY_HAND:
            if kind in name:
                return True
    return False


def by_backward(
    scalar: Tensor, leaves: list[Tensor], *, retain_graph: bool = False
) -> list[Tensor | None]:
    """Differentiate a scalar with respect to leaves: dense, `None` for those not reached."""
    reachable = set(leaves)
    is_custom = False
    for node in graph(scalar):
        if hasattr(node, "variable"):
            reachable.add(node.variable)
        # The backward pass of a custom function, such as a reentrant checkpoint, may run another
        # one, for leaves that this graph does not show. The others may belong to the loss.
        if isinstance(node, BackwardCFunction):
            is_custom = True

    before = {leaf: leaf.grad for leaf in reachable}
    for leaf in reachable:
        leaf.grad = None
    try:
        inputs = [leaf for leaf in leaves if leaf.requires_grad]  # a forward pass may freeze some
        if scalar.requires_grad and inputs:
            scalar.backward(inputs=None if is_custom else inputs, retain_graph=retain_graph)
        grads = []
        for leaf in leaves:
            grads.append(None if leaf.grad is None else leaf.grad.to_dense().detach())
    finally:
        for leaf, gradient in before.items():
            leaf.grad = gradient
    return grads
