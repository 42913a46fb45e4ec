"""Snapshots of what a function is given: what it changed in place, put back."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter


class Snapshot:
    """What tensors, models and dictionaries hold at one moment.

    Args:
        values: `{name: value}`, where a value is a tensor, a model, or a dictionary, list or tuple
            of these. Of dictionaries, the entries are kept too. Anything else is left out.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._tensors: dict[str, tuple[Tensor, Tensor, Tensor, bool]] = {}
        self._dicts: dict[str, tuple[dict, dict]] = {}
        for name, value in values.items():
            self._take(name, value)

    def _take(self, name: str, value: Any) -> None:
        if isinstance(value, Module):
            value = value.state_dict(keep_vars=True)
        if isinstance(value, Tensor) and _can_be_written(value):
            # `.data` leads back to the same storage after `model.double()` has given it another.
            self._tensors[name] = (value, value.data, value.data.clone(), value.requires_grad)
        elif isinstance(value, dict):
            self._dicts[name] = (value, dict(value))
        elif isinstance(value, list | tuple):
            value = dict(enumerate(value))
        if isinstance(value, dict):
            for key, each in value.items():
                self._take(f"{name}[{key!r}]", each)

    def restore(self) -> list[str]:
        """Make everything what it was.

        Returns:
            The names of what was anything else, for example `images` or `grads['fc1.weight']`.
        """
        changed = []
        for name, (value, entries) in self._dicts.items():
            if [(k, id(v)) for k, v in value.items()] != [(k, id(v)) for k, v in entries.items()]:
                changed.append(name)
                value.clear()
                value.update(entries)
        for name, (value, data, before, required) in self._tensors.items():
            if value.requires_grad == required and _equal(value.data, before):
                continue
            changed.append(name)
            if value.requires_grad != required:
                # What is computed in place from a parameter is no leaf, and cannot be told to stop.
                (value if value.is_leaf else value.detach_()).requires_grad_(required)
            value.data = data.copy_(before)
        return changed


def _can_be_written(tensor: Tensor) -> bool:
    """Say whether it is a plain tensor, and each of its entries has a place of its own.

    Torch refuses to write to an expanded tensor, and others (sharded, sparse) differ in what they
    compare.
    """
    if type(tensor) not in (Tensor, Parameter) or tensor.layout != torch.strided:
        return False
    return all(n < 2 or s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _equal(first: Tensor, second: Tensor) -> bool:
    """Compare two tensors exactly; a NaN equals itself, and what has no values (meta), too."""
    if (first.dtype, first.shape, first.device) != (second.dtype, second.shape, second.device):
        return False
    return first.is_meta or torch.allclose(first, second, rtol=0.0, atol=0.0, equal_nan=True)
