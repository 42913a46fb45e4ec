"""Batches as pytrees of tensors: flattened into leaves, and rebuilt.

A pytree is a tensor `(B, ...)`, a `PackedSequence` of B sequences, or a mutable mapping, list,
tuple or dataclass of pytrees. Numbers, strings, `None` and tensors of shape `()` are shared by all.
"""

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from helpers.transforms import checks
from helpers.transforms.sequences import Sequences, unpacked, with_bags

Tree = Any
Leaf = Tensor | Sequences
# What has no dimension B, and is the same for all samples.
_SHARED = str | bytes | Number | np.bool_ | Enum | torch.dtype | torch.device | None


def mapped(change: Callable[[str, Any], Any], tree: Tree, path: str = "") -> Tree:
    """Return a pytree with `change(path, leaf)` in place of each leaf."""
    if isinstance(tree, Tensor | PackedSequence | _SHARED):  # the second is a tuple, too
        return change(path, tree)
    field_names = []
    if isinstance(tree, MutableMapping):
        # A copy of another mapping may share its contents.
        changed = copy.copy(tree) if isinstance(tree, dict | UserDict) else dict(tree)
        for key, value in tree.items():
            changed[key] = mapped(change, value, f'{path}["{key}"]')
    # A list of constants, such as a size, is one constant; an empty one may be a pytree.
    elif isinstance(tree, list | tuple) and not (tree and _is_constant(tree)):
        parts = []
        for index, value in enumerate(tree):
            parts.append(mapped(change, value, f"{path}[{index}]"))
        changed = _of_parts(tree, parts, path)
    elif is_dataclass(tree) and not isinstance(tree, type):
        changed = copy.copy(tree)
        for field in fields(tree):
            field_names.append(field.name)
            value = mapped(change, getattr(tree, field.name), f"{path}.{field.name}")
            object.__setattr__(changed, field.name, value)  # even if it is frozen
    else:
        return change(path, tree)
    _check_attributes(tree, changed, field_names, path)
    return changed


def _check_attributes(tree: Tree, changed: Tree, field_names: list[str], path: str) -> None:
    """Raise TypeError if a copied node holds a tensor where `mapped` did not look for one."""
    before = getattr(tree, "__dict__", {})
    for name, value in getattr(changed, "__dict__", {}).items():
        is_shared = isinstance(value, Tensor) and value is before.get(name)
        if is_shared and name not in field_names:
            raise TypeError(
                f"{path} must not be a {type(tree).__name__} with a tensor in its attribute "
                f"{name}, besides items or fields: pass a dictionary"
            )


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a value or in nested dictionaries, lists and tuples."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def _copied(value: Any) -> Any:
    """Copy what is shared by all samples, since a forward pass may write into it."""
    if isinstance(value, list | tuple):
        parts = [_copied(part) for part in value]
        return _of_parts(value, parts, "")
    return value.clone() if isinstance(value, Tensor) else copy.copy(value)


def _of_parts(tree: list | tuple, parts: list[Tree], path: str) -> list | tuple:
    """Rebuild a list or tuple of the same class from other parts, if its class allows that."""
    if isinstance(tree, list):
        changed = copy.copy(tree)
        changed[:] = parts
        return changed
    try:
        if hasattr(tree, "_fields"):  # a named tuple takes its parts one by one
            return type(tree)(*parts)
        return type(tree)(parts)
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
    # As people call their models: a batch of a tokenizer by keywords, a tuple by position.
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
    # Only in these can there be a second argument, `offsets`.
    if isinstance(data, tuple | MutableMapping):
        trees[name] = with_bags(model, data)
    return Batch(**trees)


class _Slot:
    """What stands in a pytree where a leaf was."""

    index: int  # of the leaf, in the batch


@dataclass
class _Found:
    """A leaf of a pytree."""

    path: str
    leaf: Leaf
    slot: _Slot

    @property
    def is_on_cpu(self) -> bool:
        return self.leaf.device.type == "cpu"


class Batch:
    """The leaves `(B, ...)` of named pytrees, indexed like a tensor, and the way to rebuild them.

    The first pytree has at least one leaf. Raises TypeError for a leaf that is neither a tensor
    nor a constant, and ValueError if batch sizes differ.

    Attributes:
        leaves: Tensors `(B, ...)`, or `Sequences` of B samples.
        paths: Where each leaf is, such as `data["x"]`.
    """

    def __init__(self, **trees: Tree) -> None:
        found: list[_Found] = []
        lists: list[tuple[str, Sequence[Any]]] = []

        def take_out(path: str, value: Any) -> Any:
            """Remember a leaf, and leave a slot in its place; constants stay where they are."""
            leaf = _leaf(path, value, is_whole_tree=path in trees)
            if leaf is not None:
                slot = _Slot()
                found.append(_Found(path, leaf, slot))
                return slot
            if isinstance(value, list | tuple):
                lists.append((path, value))
            return value

        self._trees = []  # with slots in place of leaves
        for name, tree in trees.items():
            try:
                self._trees.append(mapped(take_out, tree, name))
            except RecursionError:
                raise TypeError(f"{name} must be a tree of tensors, got a cyclic one") from None
            if not found:
                raise TypeError(f"{name} must be a tensor (B, ...), got {type(tree).__name__}")
        _check_sizes(found)
        _check_lists(lists, len(found[0].leaf))

        # The device of the first leaf counts as that of the samples. Where they are on a GPU, their
        # lengths may be on the CPU, so leaves there come last.
        found.sort(key=lambda each: each.is_on_cpu)
        for index, each in enumerate(found):
            each.slot.index = index
        self.leaves = tuple([each.leaf for each in found])
        self.paths = tuple([each.path for each in found])

    def __len__(self) -> int:
        return len(self.leaves[0])

    def __getitem__(self, rows: slice | Tensor) -> "Batch":
        leaves = []
        for leaf in self.leaves:
            index = rows.to(leaf.device) if isinstance(rows, Tensor) else rows
            leaves.append(leaf[index])
        chosen = copy.copy(self)
        chosen.leaves = tuple(leaves)
        return chosen

    def beside(self, path: str, leaf: Tensor) -> "Batch":
        """Return the same batch with one more leaf, which is in none of the pytrees."""
        extended = copy.copy(self)
        extended.paths = (*self.paths, path)
        extended.leaves = (*self.leaves, leaf)
        return extended

    def first(self) -> list[Tensor]:
        """Copy the leaves of the first sample, or make zeros like them."""
        sample = []
        for leaf in self.leaves:
            if len(self):
                sample.append(leaf[0].clone())
            elif isinstance(leaf, Sequences):
                sample.append(leaf.like)
            else:
                sample.append(leaf.new_zeros(leaf.shape[1:]))
        return sample

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The leaves that are tensors, by their paths."""
        tensors = {}
        for path, leaf in zip(self.paths, self.leaves, strict=True):
            if isinstance(leaf, Tensor):
                tensors[path] = leaf
        return tensors

    def trees(self, leaves: Sequence[Tensor]) -> list[Tree]:
        """Rebuild the pytrees from other leaves."""
        return self._rebuilt(leaves, of_one=False)

    def of_one(self, sample: Sequence[Tensor]) -> list[Tree]:
        """Rebuild the pytrees of one sample, with a dimension B of 1."""
        return self._rebuilt(sample, of_one=True)

    def whole(self) -> list[Tree]:
        """Rebuild the pytrees from copies of all leaves; not for `Sequences` of several samples."""
        if len(self) == 1:
            return self.of_one(self.first())
        return self.trees([leaf.clone() for leaf in self.leaves])

    def _rebuilt(self, leaves: Sequence[Tensor], *, of_one: bool) -> list[Tree]:
        def put_back(path: str, value: Any) -> Any:
            if not isinstance(value, _Slot):
                return _copied(value)  # a constant
            leaf, before = leaves[value.index], self.leaves[value.index]
            if isinstance(before, Sequences):  # of one sample, even in `trees`
                return before.of_one(leaf)
            return leaf.unsqueeze(0) if of_one else leaf

        return [mapped(put_back, tree) for tree in self._trees]


def _leaf(path: str, value: Any, *, is_whole_tree: bool) -> Leaf | None:
    """Return a leaf `(B, ...)`, or `None` for a constant; raise an error for anything else."""
    if isinstance(value, PackedSequence):
        return unpacked(value)
    if isinstance(value, Sequences):
        return value
    # A tensor of shape () is a constant, unless it is all there is: then the check refuses it.
    if isinstance(value, Tensor) and (value.dim() > 0 or is_whole_tree):
        checks.check_batch(path, value)
        return value.detach()
    if not isinstance(value, list | tuple | Tensor | _SHARED):
        checks.check_batch(path, value)  # which says what it is
    return None


def _check_sizes(found: list[_Found]) -> None:
    """Raise ValueError if two leaves have different batch sizes."""
    first = found[0]
    for other in found:
        if len(other.leaf) != len(first.leaf):
            sizes = f"{len(first.leaf)} and {len(other.leaf)}"
            raise ValueError(f"{first.path} and {other.path} must have one batch size, got {sizes}")


def _check_lists(lists: list[tuple[str, Sequence[Any]]], size: int) -> None:
    """Raise TypeError for a list of constants, as many as there are samples."""
    for path, values in lists:
        if len(values) == size and size > 1:
            raise TypeError(
                f"{path} must be a tensor (B, ...), got {type(values).__name__} of "
                f"{len(values)} constants, which could be one a sample or shared by all"
            )
