"""Batches as pytrees of tensors: flattened into leaves, and rebuilt.

A pytree is a tensor `(B, ...)`, a `PackedSequence` of B sequences, or a mutable mapping, list,
tuple or dataclass of pytrees. Numbers, strings, `None` and tensors of shape `()` are shared by all.
"""

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from numbers import Number
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from helpers.transforms import checks
from helpers.transforms.sequences import Sequences, unpacked, with_bags

Tree = Any
Leaf = Tensor | Sequences
_SHARED = str | bytes | Number | np.bool_ | Enum | torch.dtype | torch.device | None


def mapped(change: Callable[[str, Any], Any], tree: Tree, path: str = "") -> Tree:
    """Return a pytree with `change(path, leaf)` in place of each leaf."""
    if isinstance(tree, Tensor | PackedSequence | _SHARED):
        return change(path, tree)
    names: list[str] = []
    if isinstance(tree, MutableMapping):
        # A copy of another mapping may share its contents.
        changed = copy.copy(tree) if isinstance(tree, dict | UserDict) else dict(tree)
        for key, value in tree.items():
            changed[key] = mapped(change, value, f'{path}["{key}"]')
    elif isinstance(tree, list | tuple) and not (tree and _is_constant(tree)):
        items = [mapped(change, value, f"{path}[{index}]") for index, value in enumerate(tree)]
        changed = _of_parts(tree, items, path)
    elif is_dataclass(tree) and not isinstance(tree, type):
        changed, names = copy.copy(tree), [field.name for field in fields(tree)]
        for name in names:
            value = mapped(change, getattr(tree, name), f"{path}.{name}")
            object.__setattr__(changed, name, value)  # even if it is frozen
    else:
        return change(path, tree)
    before = getattr(tree, "__dict__", {})
    for name, value in getattr(changed, "__dict__", {}).items():
        if isinstance(value, Tensor) and value is before.get(name) and name not in names:
            raise TypeError(
                f"{path} must not be a {type(tree).__name__} with a tensor in its attribute "
                f"{name}, besides items or fields: pass a dictionary"
            )
    return changed


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a value or in nested dictionaries, lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def _copied(value: Any) -> Any:
    """Copy what is shared by all samples."""
    if isinstance(value, list | tuple):
        return _of_parts(value, [*map(_copied, value)], "")
    return value.clone() if isinstance(value, Tensor) else copy.copy(value)


def _of_parts(tree: list | tuple, items: list[Tree], path: str) -> list | tuple:
    """Rebuild a list or tuple of the same class from other parts, if its class allows that."""
    if isinstance(tree, list):
        changed = copy.copy(tree)
        changed[:] = items
        return changed
    try:
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    except TypeError:
        raise TypeError(
            f"{path} must not be a {type(tree).__name__}, which cannot be rebuilt: pass a tuple"
        ) from None


def _is_constant(value: Any) -> bool:
    """Tell whether a value has no dimension B, whatever it holds."""
    if isinstance(value, list | tuple) and not isinstance(value, PackedSequence):
        return all(map(_is_constant, value))
    return isinstance(value, _SHARED) or (isinstance(value, Tensor) and not value.dim())


def call(model: Callable[..., Any], data: Tree) -> Any:
    """Call a model: `model(**mapping)`, `model(*tuple)` or `model(anything_else)`."""
    if isinstance(data, MutableMapping):
        return model(**data)
    if isinstance(data, tuple) and not isinstance(data, PackedSequence):
        return model(*data)
    return model(data)


def take(model: nn.Module, **trees: Tree) -> "Batch":
    """Make a `Batch` of a model's data and of other pytrees, unless the data are one already."""
    name, data = next(iter(trees.items()))
    if isinstance(data, Batch):
        return data
    if isinstance(data, tuple | MutableMapping):
        trees[name] = with_bags(model, data)
    return Batch(**trees)


class _Slot:
    index: int  # of the leaf that was here


class Batch:
    """The leaves `(B, ...)` of named pytrees, indexed like a tensor, and the way to rebuild them.

    The first pytree has at least one leaf. Raises TypeError for a leaf that is neither a tensor
    nor a constant, and ValueError if batch sizes differ.
    """

    def __init__(self, **trees: Tree) -> None:
        leaves: list[tuple[bool, str, Leaf, _Slot]] = []
        lists: list[tuple[str, Sequence[Any]]] = []

        def remember(path: str, value: Any) -> Any:
            if isinstance(value, PackedSequence):
                value = unpacked(value)
            elif isinstance(value, Tensor) and (value.dim() or path in trees):
                checks.check_batch(path, value)
                value = value.detach()
            elif isinstance(value, list | tuple):
                lists.append((path, value))
            elif not isinstance(value, Sequences | _SHARED | Tensor):
                checks.check_batch(path, value)
            if isinstance(value, Sequences) or (isinstance(value, Tensor) and value.dim()):
                leaves.append((value.device.type == "cpu", path, value, slot := _Slot()))
                return slot
            return value

        self._trees = []
        for name, tree in trees.items():
            try:
                self._trees.append(mapped(remember, tree, name))
            except RecursionError:
                raise TypeError(f"{name} must be a tree of tensors, got a cyclic one") from None
            if not leaves:
                raise TypeError(f"{name} must be a tensor (B, ...), got {type(tree).__name__}")
        _, first, like, _ = leaves[0]
        for _, path, leaf, _ in leaves:
            if len(leaf) != len(like):
                sizes = f"{len(like)} and {len(leaf)}"
                raise ValueError(f"{first} and {path} must have one batch size, got {sizes}")
        for path, values in lists:
            if len(values) == len(like) > 1:
                raise TypeError(
                    f"{path} must be a tensor (B, ...), got {type(values).__name__} of "
                    f"{len(values)} constants, which could be one a sample or shared by all"
                )
        # The device of the first counts as that of the samples; lengths may be on the CPU.
        leaves.sort(key=itemgetter(0))
        _, self.paths, self.leaves, slots = zip(*leaves, strict=True)
        for index, slot in enumerate(slots):
            slot.index = index
        self.in_dims = (0,) * len(leaves)  # for `vmap`

    def __len__(self) -> int:
        return len(self.leaves[0])

    def __getitem__(self, rows: slice | Tensor) -> "Batch":
        chosen = copy.copy(self)
        index = [rows.to(leaf.device) if isinstance(rows, Tensor) else rows for leaf in self.leaves]
        chosen.leaves = tuple(leaf[picked] for leaf, picked in zip(self.leaves, index, strict=True))
        return chosen

    def sample(self) -> list[Tensor]:
        """Copy the leaves of the first sample, or make zeros like them."""
        if len(self):
            return [leaf[0].clone() for leaf in self.leaves]
        return [
            leaf.like if isinstance(leaf, Sequences) else leaf.new_zeros(leaf.shape[1:])
            for leaf in self.leaves
        ]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The leaves that are tensors, by their paths."""
        pairs = zip(self.paths, self.leaves, strict=True)
        return {path: leaf for path, leaf in pairs if isinstance(leaf, Tensor)}

    def trees(self, leaves: Sequence[Tensor], *, of_one: bool = False) -> list[Tree]:
        """Rebuild the pytrees from other leaves, with a dimension B of 1 if `of_one`."""

        def put(_: str, value: Any) -> Any:
            if not isinstance(value, _Slot):
                return _copied(value)
            template, leaf = self.leaves[value.index], leaves[value.index]
            if isinstance(template, Sequences):
                return template.of_one(leaf)
            return leaf.unsqueeze(0) if of_one else leaf

        return [*map(partial(mapped, put), self._trees)]

    def of_one(self, sample: Sequence[Tensor]) -> list[Tree]:
        """Rebuild the pytrees of one sample, with a dimension B of 1."""
        return self.trees(sample, of_one=True)

    def whole(self) -> list[Tree]:
        """Rebuild the pytrees from copies of all leaves; not for `Sequences` of several samples."""
        if len(self) == 1:
            return self.of_one(self.sample())
        return self.trees([leaf.clone() for leaf in self.leaves])
