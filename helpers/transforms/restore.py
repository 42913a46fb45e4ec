"""Restoring a model: its buffers, flags, gradients, attributes and containers.

Parameters are neither copied nor compared: in-place changes persist, as does state that a forward
pass keeps outside the model.
"""

import copy
import functools
import itertools
import types
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from helpers.transforms import fallback
from helpers.transforms.checks import Parts
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


def version(tensor: Tensor) -> int:
    """Return how often a tensor was written in place, which no public name tells."""
    return tensor._version  # noqa: SLF001


@contextmanager
def preserved(
    model: nn.Module,
    names: Collection[str] = (),
    others: Sequence[nn.Module] = (),
    *,
    parts: Parts | None = None,
) -> "Iterator[Snapshot]":
    """Restore a model at the end of a block, except its parameters' values.

    Inside, exactly the named parameters require a gradient, and none has a `.grad`. Yields the
    state, to be restored within the block as well. Warns of parameters that were written into.
    `others`, such as a loss with state, are restored too. `parts` are those of the model, if they
    are known.
    """
    parts = parts or Parts(model)
    every = list(parts.parameters.values())
    for module in others:
        every.extend(module.parameters())

    parameters = {}
    for name, parameter in parts.parameters.items():
        if parameter.is_inference():
            raise ValueError(
                f"{name} was made in inference mode, so it cannot require a gradient: make the "
                "model outside of torch.inference_mode()"
            )
        if parameter.is_leaf:  # other tensors have neither a flag nor a `.grad`
            parameters[name] = parameter
    snapshot = Snapshot([model, *others, *parts.buffers.values()], every)
    before = []
    for parameter in parameters.values():
        data = parameter.data
        before.append((parameter.requires_grad, parameter.grad, version(parameter), data))
    try:
        for name, parameter in parameters.items():
            parameter.requires_grad = name in names  # vmap forbids `requires_grad_()`
            parameter.grad = None
        yield snapshot
    finally:
        if not snapshot.is_current:
            snapshot.restore()
        for parameter, (flag, gradient, _, _) in zip(parameters.values(), before, strict=True):
            parameter.requires_grad = flag
            parameter.grad = gradient

    for (name, parameter), (_, _, written, data) in zip(parameters.items(), before, strict=True):
        moved = parameter.layout is torch.strided and not parameter.is_set_to(data)
        if moved or version(parameter) != written:
            fallback.warn(
                f"the forward pass writes into the parameter {name}, which stays as written: "
                "each sample after a write was computed with the new values",
                category=UserWarning,
            )


class Snapshot:
    """The state of modules and buffers, except the values of `parameters` and `generators`.

    Attributes:
        generators: The random generators that the modules hold.
        is_current: Whether nothing ran since the state was restored, as far as whoever runs the
            model says so.
    """

    def __init__(self, roots: Iterable[Any], parameters: Iterable[Tensor] = ()) -> None:
        self.generators: list[Any] = []
        self.is_current = False
        self._empty: list[dict[Any, Any]] = []  # each module has a dozen, for hooks
        self._collections: list[tuple[Any, Any]] = []  # a collection, and what it held
        self._iterators: list[tuple[dict[Any, Any], Any, Any]] = []  # restore copies
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []
        self._slots: list[tuple[Any, Any, Any]] = []  # object, slot, value
        self._tensors: list[tuple[Tensor, Tensor, int]] = []  # tensor, its numbers, its version

        excluded = set()
        for parameter in parameters:
            excluded.add(id(parameter))
        for value in walk(roots, self._empty):
            if isinstance(value, dict):
                self._note_dictionary(value)
            elif isinstance(value, list | set | deque):
                self._collections.append((value, _contents(value)))
            elif isinstance(value, Tensor):
                if id(value) not in excluded:
                    self._note_tensor(value)
            elif isinstance(value, np.ndarray):
                if value.flags.writeable:
                    self._arrays.append((value, value.copy()))
            elif type(value) in GENERATORS:
                self.generators.append(value)
            else:
                for slot in _slots(type(value)):
                    self._slots.append((value, slot, _held(value, slot)))
        # An iterator cannot be read without being used up, so the model gets a copy from the start.
        if self._iterators:
            self.restore()

    def _note_dictionary(self, dictionary: dict[Any, Any]) -> None:
        contents = _contents(dictionary)
        self._collections.append((dictionary, contents))
        for key, item in contents.items():
            kind = type(item)
            if kind not in _ENDS and kind not in _PLAIN and _is_iterator(kind):
                self._iterators.append((dictionary, key, itertools.tee(item, 1)[0]))

    def _note_tensor(self, tensor: Tensor) -> None:
        # A tensor with a graph is what an earlier forward left, or a view of a parameter.
        if tensor.grad_fn is None and not tensor.is_inference() and not tensor.is_meta:
            self._tensors.append((tensor, tensor.detach().clone(), version(tensor)))

    def restore(self) -> None:
        """Restore the state."""
        for dictionary in self._empty:
            dictionary.clear()
        for collection, values in self._collections:
            if not _alike(collection, values):
                _refill(collection, values)
        for dictionary, key, iterator in self._iterators:
            dictionary[key] = copy.copy(iterator)
        for owner, slot, value in self._slots:
            if _held(owner, slot) is value:
                continue
            if value is _EMPTY:
                slot.__delete__(owner)
            else:
                slot.__set__(owner, value)
        for array, numbers in self._arrays:
            np.copyto(array, numbers)
        for tensor, values in self._changed_tensors():
            with torch.no_grad():
                if tensor.grad_fn is not None:  # detach it from a forward pass's graph
                    tensor.detach_()
                if tensor.shape == values.shape:
                    tensor.copy_(values)
                else:
                    tensor.data = values.clone()

    def _changed_tensors(self) -> list[tuple[Tensor, Tensor]]:
        """Return the tensors that changed, with their former numbers."""
        changed, on_devices, flags = [], [], []
        for tensor, values, written in self._tensors:
            # A write into `tensor.data` leaves no trace but the numbers.
            if tensor.grad_fn is not None or tensor.shape != values.shape:
                changed.append((tensor, values))
            elif tensor.layout is not torch.strided:
                if version(tensor) != written:
                    changed.append((tensor, values))
            elif tensor.device.type == "cpu":
                if not torch.equal(tensor, values):
                    changed.append((tensor, values))
            else:
                on_devices.append((tensor, values))
                flags.append((tensor != values).any())
        # To ask once for each tensor would wait for the device each time.
        if flags:
            for pair, is_changed in zip(on_devices, _to_list(flags), strict=True):
                if is_changed:
                    changed.append(pair)
        return changed


def _to_list(flags: list[Tensor]) -> list[bool]:
    """Read flags, which may lie on several devices."""
    device = flags[0].device
    return torch.stack([flag.to(device) for flag in flags]).tolist()


def walk(roots: Iterable[Any], empty: list[dict[Any, Any]]) -> Iterator[Any]:
    """Yield each object reachable by attributes, containers and bound methods once.

    Empty dictionaries are added to `empty` instead: most dictionaries of a module are.
    """
    visited: set[int] = set()
    waiting = [*roots]
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind in _ENDS or id(value) in visited:
            continue
        visited.add(id(value))
        if kind in _PLAIN:
            if not value:
                empty.append(value)
                continue
            yield value
            for item in value.values():
                kind = type(item)
                if kind in _PLAIN and not item:
                    empty.append(item)
                elif kind not in _ENDS:
                    waiting.append(item)
            continue
        yield value
        if isinstance(value, dict):
            waiting.extend(_contents(value).values())
        elif isinstance(value, _SEQUENCES):
            waiting.extend(_contents(value))
        elif isinstance(value, types.MethodType):
            waiting.append(value.__self__)
        elif kind is partial:
            waiting.extend((value.func, value.args, value.keywords))
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
    slots = []
    for base in kind.__mro__:
        namespace = vars(base)
        if "__slots__" not in namespace:
            continue
        for member in namespace.values():
            if isinstance(member, types.MemberDescriptorType):
                slots.append(member)
    return tuple(slots)


@functools.lru_cache
def _is_iterator(kind: type) -> bool:
    """Tell whether objects of a class are iterators that can be copied."""
    return issubclass(kind, Iterator) and kind.__module__ in _OF_ITERATORS


def _held(value: Any, slot: types.MemberDescriptorType) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return _EMPTY


def _contents(collection: Collection[Any]) -> dict[Any, Any] | list[Any]:
    """Copy a collection's contents, ignoring any methods that its class overrides."""
    kind = _base(type(collection))
    if issubclass(kind, dict):
        return dict(kind.items(collection))
    return list(kind.__iter__(collection))


def _refill(collection: Any, values: dict[Any, Any] | list[Any]) -> None:
    """Give a collection its former contents, ignoring any methods that its class overrides."""
    kind = _base(type(collection))
    kind.clear(collection)
    if isinstance(values, dict):
        for key, value in values.items():
            kind.__setitem__(collection, key, value)
    elif kind is set:
        set.update(collection, values)
    else:
        kind.extend(collection, values)


@functools.lru_cache
def _base(kind: type) -> type:
    """Return the built-in class that a collection class extends."""
    for base in (OrderedDict, dict, *_SEQUENCES):
        if issubclass(kind, base):
            return base
    raise TypeError(f"{kind.__name__} is no collection")


def _alike(now: Collection[Any], then: Collection[Any]) -> bool:
    """Compare collections by the identity of what they hold, dictionaries by order as well."""
    if type(now) not in _PLAIN:
        now = _contents(now)
    if len(now) != len(then) or not all(map(is_, now, then)):
        return False
    return not isinstance(then, dict) or all(map(is_, now.values(), then.values()))
