"""Restoring a model: its buffers, flags, gradients, attributes and containers.

Parameters are neither copied nor compared: in-place changes persist, as does state that a forward
pass keeps outside the model.
"""

import copy
import functools
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

from helpers.transforms import fallback
from helpers.transforms.known_wrong import reached
from helpers.transforms.randomness import GENERATORS

# What cannot change, or leads out of the model, ends a walk.
_NUMBERS = (type(None), bool, int, float, complex, str, bytes, range, slice)
_KINDS = (torch.dtype, torch.device, torch.Size, type, types.ModuleType, types.BuiltinFunctionType)
_ENDS = frozenset((*_NUMBERS, *_KINDS))
_PLAIN = (dict, OrderedDict)
_SEQUENCES = (list, tuple, set, deque)
_OF_ITERATORS = ("builtins", "itertools")  # the modules of their classes; others may be files
_WITHOUT_ATTRIBUTES = (Tensor, types.FunctionType, type, torch.jit.ScriptModule, *GENERATORS)
_EMPTY = object()  # the value of a slot that is not set
_FOREIGN = ("torch._", "torch.jit", "torch.fx", "_thread", "threading", "logging", "weakref")


@contextmanager
def preserved(
    model: nn.Module, names: Collection[str] = (), *functions: Any
) -> "Iterator[Snapshot]":
    """Restore a model at the end of a block, except its parameters' values.

    Inside, exactly the named parameters require a gradient, and none has a `.grad`. Yields the
    state, to be restored within the block as well. Warns of parameters that were written into.
    So are modules that `functions` are or name, such as a loss with state.
    """
    parameters, before = {}, []
    for name, parameter in model.named_parameters():
        if parameter.is_inference():
            raise ValueError(
                f"{name} was made in inference mode, so it cannot require a gradient: make the "
                "model outside of torch.inference_mode()"
            )
        if parameter.is_leaf:  # other tensors have neither a flag nor a `.grad`
            parameters[name] = parameter
    losses = (value for value in reached(functions, model) if isinstance(value, nn.Module))
    roots = [model, *losses]
    own = itertools.chain(*(module.parameters() for module in roots))
    snapshot = Snapshot([*roots, *model.buffers()], own)
    for p in parameters.values():
        before.append((p.requires_grad, p.grad, p._version, p.data))
    try:
        for name, parameter in parameters.items():
            parameter.requires_grad = name in names  # vmap forbids `requires_grad_()`
            parameter.grad = None
        yield snapshot
    finally:
        snapshot.restore()
        for parameter, (flag, gradient, *_) in zip(parameters.values(), before, strict=True):
            parameter.requires_grad = flag
            parameter.grad = gradient
    for (name, parameter), (*_, version, data) in zip(parameters.items(), before, strict=True):
        moved = parameter.layout is torch.strided and not parameter.is_set_to(data)
        if moved or parameter._version != version:
            fallback.warn(
                f"the forward pass writes into the parameter {name}, which stays as written: "
                "each sample after a write was computed with the new values",
                category=UserWarning,
            )


class Snapshot:
    """The state of modules and buffers, except the values of `parameters` and `generators`."""

    def __init__(self, roots: Iterable[Any], parameters: Iterable[Tensor] = ()) -> None:
        self.generators: list[Any] = []
        self._empty: list[dict[Any, Any]] = []  # each module has a dozen, for hooks
        self._collections: list[tuple[Any, Any]] = []
        self._iterators: list[tuple[dict[Any, Any], Any, Any]] = []  # restore copies
        self._slots: list[tuple[Any, Any, Any]] = []  # object, slot, value
        self._others: list[tuple[Any, ...]] = []  # functions and their arguments
        self._tensors: list[tuple[Tensor, Tensor, int]] = []
        excluded = set(map(id, parameters))
        for value in walk(roots):
            if type(value) in _PLAIN and not value:
                self._empty.append(value)
            elif isinstance(value, dict | list | set | deque):
                contents = _contents(value)
                self._collections.append((value, contents))
                for key, item in contents.items() if isinstance(value, dict) else ():
                    if isinstance(item, Iterator) and type(item).__module__ in _OF_ITERATORS:
                        self._iterators.append((value, key, itertools.tee(item, 1)[0]))
            elif isinstance(value, Tensor):
                # A tensor with a graph is what an earlier forward left, or a view of a parameter.
                is_state = id(value) not in excluded and value.grad_fn is None
                if is_state and not value.is_inference() and not value.is_meta:
                    self._tensors.append((value, value.detach().clone(), value._version))
            elif isinstance(value, np.ndarray) and value.flags.writeable:
                self._others.append((np.copyto, value, value.copy()))
            elif type(value) in GENERATORS:
                self.generators.append(value)
            else:
                for slot in _slots(type(value)):
                    self._slots.append((value, slot, _held(value, slot)))
        if self._iterators:
            self.restore()

    def restore(self) -> None:
        """Restore the state."""
        for dictionary in self._empty:
            dictionary.clear()
        for collection, values in self._collections:
            if not _alike(collection, values):
                kind = _base(type(collection))
                kind.clear(collection)
                if isinstance(values, dict):
                    for key, value in values.items():
                        kind.__setitem__(collection, key, value)
                else:
                    (set.update if kind is set else kind.extend)(collection, values)
        for dictionary, key, iterator in self._iterators:
            dictionary[key] = copy.copy(iterator)
        for owner, slot, value in self._slots:
            if _held(owner, slot) is not value:
                slot.__delete__(owner) if value is _EMPTY else slot.__set__(owner, value)
        for put_back, *values in self._others:
            put_back(*values)
        for tensor, values, version in self._tensors:
            # A write into `tensor.data` leaves no trace but the numbers.
            strided = tensor.layout is torch.strided
            same = torch.equal(tensor, values) if strided else tensor._version == version
            if same and tensor.grad_fn is None:
                continue
            with torch.no_grad():
                if tensor.grad_fn is not None:  # detach it from a forward pass's graph
                    tensor.detach_()
                if tensor.shape == values.shape:
                    tensor.copy_(values)
                else:
                    tensor.data = values.clone()


def walk(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield each object reachable by attributes, containers and bound methods once."""
    visited: set[int] = set()
    waiting = [*roots]
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind in _ENDS or id(value) in visited:
            continue
        visited.add(id(value))
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
        elif isinstance(value, _WITHOUT_ATTRIBUTES):
            continue
        elif isinstance(value, nn.Module) or not kind.__module__.startswith(_FOREIGN):
            for slot in _slots(kind):
                waiting.append(_held(value, slot))
            if hasattr(value, "__dict__"):
                waiting.append(vars(value))


@functools.lru_cache  # at most 128 classes, since it keeps them alive
def _slots(kind: type) -> tuple[types.MemberDescriptorType, ...]:
    """Return the descriptors of the `__slots__` of a class."""
    if kind.__module__.startswith(_FOREIGN):
        return ()
    return tuple(
        member
        for namespace in map(vars, kind.__mro__)
        for member in namespace.values()
        if "__slots__" in namespace and isinstance(member, types.MemberDescriptorType)
    )


def _held(value: Any, slot: types.MemberDescriptorType) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return _EMPTY


def _contents(collection: Collection[Any]) -> dict[Any, Any] | list[Any]:
    """Copy a collection's contents, ignoring any methods that its class overrides."""
    kind = _base(type(collection))
    return dict(kind.items(collection)) if issubclass(kind, dict) else [*kind.__iter__(collection)]


@functools.lru_cache
def _base(kind: type) -> type:
    """Return the built-in class that a collection class extends."""
    return next(base for base in (*_PLAIN[::-1], *_SEQUENCES) if issubclass(kind, base))


def _alike(now: Collection[Any], then: Collection[Any]) -> bool:
    """Compare collections by the identity of what they hold, dictionaries by order as well."""
    if type(now) not in _PLAIN:
        now = _contents(now)
    if len(now) != len(then) or not all(map(is_, now, then)):
        return False
    return not isinstance(then, dict) or all(map(is_, now.values(), then.values()))
