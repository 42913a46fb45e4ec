"""A model put back as it was: its tensors, flags, gradients, attributes and containers.

The model that a caller hands in is the one that runs. What lies in it is put back between samples
or chunks. What a forward keeps outside of it (in globals, in its class, in what a function closes
over, in a file) belongs to the caller and stays as the forward leaves it.
"""

import copy
import itertools
import types
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# What cannot change, or leads out of the model: there a walk ends.
_NUMBERS = (type(None), bool, int, float, complex, str, bytes, range, slice)
_KINDS = (torch.dtype, torch.device, torch.Size, type, types.ModuleType, types.BuiltinFunctionType)
_ENDS = frozenset((*_NUMBERS, *_KINDS))
_PLAIN = (dict, OrderedDict)
_SEQUENCES = (list, tuple, set, deque)
_OF_ITERATORS = ("builtins", "itertools")  # the modules of their classes; others may be files
_BUILT_IN = frozenset((*_PLAIN, *_SEQUENCES))
_WITHOUT_ATTRIBUTES = (Tensor, types.FunctionType, type)
_FOREIGN = ("torch._", "torch.jit", "torch.fx", "_thread", "threading", "logging", "weakref")


@contextmanager
def preserved(model: nn.Module, names: Collection[str] = ()) -> "Iterator[Snapshot]":
    """Let a block run a model, and put the model back at its end.

    Inside, exactly the named parameters require a gradient, and no parameter has a `.grad`. Yields
    the state of the model, to be restored within the block as well. Raises ValueError for a
    parameter that was made in inference mode.
    """
    snapshot = Snapshot([model, *model.parameters(), *model.buffers()])
    before = []
    for name, parameter in model.named_parameters():
        if parameter.is_inference():
            raise ValueError(
                f"{name} was made in inference mode, so it cannot require a gradient: make the "
                "model outside of torch.inference_mode()"
            )
        if parameter.is_leaf:
            before.append((parameter, parameter.requires_grad, parameter.grad))
            parameter.requires_grad = name in names  # as a method, torch forbids it under vmap
            parameter.grad = None
    try:
        yield snapshot
    finally:
        snapshot.restore()
        for parameter, flag, gradient in before:
            parameter.requires_grad = flag
            parameter.grad = gradient


class Snapshot:
    """The state of modules when this is made: tensors, attributes, containers; see `walk`."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self._dictionaries: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._empty: list[dict[Any, Any]] = []  # of which a module has a dozen, for hooks
        self._collections: list[tuple[Any, Any]] = []
        self._iterators: list[tuple[dict[Any, Any], Any, Any]] = []  # copies go back
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []
        self._generators: list[tuple[torch.Generator, Tensor]] = []
        self._tensors: list[tuple[Tensor, Tensor, int]] = []
        for value in walk(roots):
            if isinstance(value, dict):
                if dict.__len__(value):
                    self._dictionaries.append((value, _contents(value)))
                    for key, each in self._dictionaries[-1][1].items():
                        if isinstance(each, Iterator) and type(each).__module__ in _OF_ITERATORS:
                            self._iterators.append((value, key, itertools.tee(each, 1)[0]))
                else:
                    self._empty.append(value)
            elif isinstance(value, list | set | deque):
                self._collections.append((value, _contents(value)))
            elif isinstance(value, Tensor):
                # A tensor with a graph is what an earlier forward left, or a view of a parameter.
                if value.grad_fn is None and not value.is_inference() and not value.is_meta:
                    self._tensors.append((value, value.detach().clone(), value._version))
            elif isinstance(value, np.ndarray):
                self._arrays.append((value, value.copy()))
            elif isinstance(value, torch.Generator):
                self._generators.append((value, value.get_state()))
        if self._iterators:
            self.restore(compare=False)

    def restore(self, *, compare: bool = True) -> bool:
        """Bring the state back; return whether there was a write that left no trace.

        Such a write, into `tensor.data`, is found where the numbers of dense tensors are compared.
        """
        for dictionary in self._empty:
            if dict.__len__(dictionary):
                _base(dictionary).clear(dictionary)
        for dictionary, values in self._dictionaries:
            if not _alike(dictionary, values):
                kind = _base(dictionary)
                kind.clear(dictionary)
                for key, value in values.items():
                    kind.__setitem__(dictionary, key, value)
        for dictionary, key, iterator in self._iterators:
            dictionary[key] = copy.copy(iterator)
        for collection, values in self._collections:
            if not _alike(collection, values):
                kind = _base(collection)
                kind.clear(collection)
                (set.update if kind is set else kind.extend)(collection, values)
        for array, values in self._arrays:
            if array.flags.writeable:
                np.copyto(array, values)
        for generator, state in self._generators:
            generator.set_state(state)
        hidden = False
        for index, (tensor, values, version) in enumerate(self._tensors):
            written = tensor._version != version or tensor.grad_fn is not None
            dense = tensor.layout is torch.strided
            if written or (compare and dense and not torch.equal(tensor, values)):
                hidden = hidden or not written
                _rewrite(tensor, values)
                self._tensors[index] = (tensor, values, tensor._version)
        return hidden

    def written(self) -> set[int]:
        """Return the `id` of tensors that were written into, and of containers that changed."""
        found = {id(each) for each in self._empty if dict.__len__(each)}
        found |= {id(now) for now, then in self._dictionaries if not _alike(now, then)}
        found |= {id(now) for now, then in self._collections if not _alike(now, then)}
        found |= {id(now) for now, then in self._arrays if not np.array_equal(now, then)}
        return found | {id(now) for now, _, version in self._tensors if now._version != version}


def walk(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield each object once that modules lead to by attributes, containers and bound methods.

    What a function closes over is not its own: a list that a hook fills for its user stays filled.
    """
    seen: set[int] = set()
    waiting = [*roots]
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind in _ENDS or id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if kind in _PLAIN:
            waiting.extend(value.values())
        elif isinstance(value, dict):
            waiting.extend(_contents(value).values())
        elif isinstance(value, _SEQUENCES):
            waiting.extend(_contents(value))
        elif isinstance(value, types.MethodType):
            waiting.append(value.__self__)
        elif kind is partial:
            waiting += [value.func, value.args, value.keywords]
        elif isinstance(value, nn.Module):
            if not isinstance(value, torch.jit.ScriptModule):  # its attributes lie elsewhere
                waiting.append(vars(value))
        elif isinstance(value, _WITHOUT_ATTRIBUTES) or kind.__module__.startswith(_FOREIGN):
            continue
        elif hasattr(value, "__dict__"):
            waiting.append(vars(value))


def _contents(collection: Collection[Any]) -> dict[Any, Any] | list[Any]:
    """Copy what a collection holds, also one whose class answers otherwise, or not at all."""
    kind = type(collection)
    if kind in _PLAIN:
        return dict(collection)
    if kind in _BUILT_IN:
        return [*collection]
    kind = _base(collection)
    if not issubclass(kind, dict):
        return [*kind.__iter__(collection)]
    return {key: dict.__getitem__(collection, key) for key in kind.keys(collection)}


def _base(collection: Collection[Any]) -> type:
    """Return which class of Python a collection is built on, whatever its own class refuses."""
    return next(kind for kind in (*_PLAIN[::-1], *_SEQUENCES) if isinstance(collection, kind))


def _alike(now: Collection[Any], then: Collection[Any]) -> bool:
    """Compare collections by the identity of what they hold, dictionaries by order as well."""
    if type(now) not in _BUILT_IN:
        now = _contents(now)
    if len(now) != len(then) or not all(map(is_, now, then)):
        return False
    return not isinstance(then, dict) or all(map(is_, now.values(), then.values()))


def _rewrite(tensor: Tensor, values: Tensor) -> None:
    """Write values into a tensor, and take it out of the graph that a forward put it into."""
    with torch.no_grad():
        if tensor.grad_fn is not None:
            tensor.detach_()
        if tensor.shape == values.shape:
            tensor.copy_(values)
        else:
            tensor.data = values.clone()
