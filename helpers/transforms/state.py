"""What a forward can change in a model besides its registered tensors, and how it is undone."""

import types
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from helpers.transforms.outside import Outside

# What cannot change, or leads to what is no model's own: there a walk goes no further.
_NUMBERS = (type(None), bool, int, float, complex, str, bytes, range, slice)
_KINDS = (torch.dtype, torch.device, torch.Size, type, types.ModuleType, types.BuiltinFunctionType)
_ENDS = frozenset((*_NUMBERS, *_KINDS))
_PLAIN = (dict, OrderedDict)
_CONTAINERS = (list, tuple, set, deque)
_WITHOUT = (Tensor, types.FunctionType, type)
_FOREIGN = ("torch._", "torch.jit", "torch.fx", "_thread", "threading", "logging", "weakref")


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
            waiting.extend(_as_stored(value).values())
        elif isinstance(value, _CONTAINERS):
            waiting.extend(value)
        elif isinstance(value, types.MethodType):
            waiting.append(value.__self__)
        elif kind is partial:
            waiting += [value.func, value.args, value.keywords]
        elif is_object(value):
            waiting.append(vars(value))


def is_object(value: Any) -> bool:
    """Say whether something has attributes of its own that a forward could change."""
    if isinstance(value, nn.Module):
        return not isinstance(value, torch.jit.ScriptModule)  # its attributes lie elsewhere
    if isinstance(value, _WITHOUT):
        return False
    return hasattr(value, "__dict__") and not type(value).__module__.startswith(_FOREIGN)


class Kept:
    """The state of modules as it is now: attributes, containers, plain tensors, hooks.

    What their code keeps in attributes of classes and in variables of files belongs to it.

    `undo` brings it back, whether it was rebound or changed in place: counters, caches, lists,
    hooks that were registered on first use. Made once, it serves for any number of calls.

    Args:
        models: Modules.
        apart: Registered tensors, which are somebody else's concern.
    """

    def __init__(self, models: Iterable[nn.Module], apart: Iterable[Tensor] = ()) -> None:
        apart = {id(tensor) for tensor in apart}
        self.has_functions = False
        """Whether functions stand in the modules, as hooks or as attributes."""
        self._dictionaries: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._others: list[tuple[Any, Any]] = []
        self._tensors: list[tuple[Tensor, Tensor, int]] = []
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []
        self._generators: list[tuple[torch.Generator, Tensor]] = []
        self._empty: list[dict[Any, Any]] = []
        models = [*models]
        self._outside = Outside(
            each for model in models if isinstance(model, nn.Module) for each in model.modules()
        )
        for value in walk([*models, *self._outside.holders]):
            if isinstance(value, dict):
                if value:
                    self._dictionaries.append((value, _as_stored(value)))
                else:
                    self._empty.append(value)
            elif isinstance(value, list | set | deque):
                self._others.append((value, value.copy()))
            elif isinstance(value, Tensor):
                if id(value) not in apart and not value.is_inference():
                    self._tensors.append((value, value.detach().clone(), value._version))
            elif isinstance(value, np.ndarray):
                self._arrays.append((value, value.copy()))
            elif isinstance(value, torch.Generator):
                self._generators.append((value, value.get_state()))
            elif isinstance(value, types.FunctionType):
                self.has_functions = True

    def changed(self) -> bool:
        """Say whether something is not as it was, tensors and arrays by their writes."""
        return (
            any(self._empty)
            or any(not _is_same(now, then) for now, then in self._dictionaries)
            or any(not _alike(now, then) for now, then in self._others)
            or any(tensor._version != version for tensor, _, version in self._tensors)
            or any(not np.array_equal(now, then) for now, then in self._arrays)
        )

    def undo(self) -> None:
        """Bring the state back."""
        self._outside.undo()
        for dictionary in self._empty:
            if dictionary:
                dictionary.clear()
        for dictionary, values in self._dictionaries:
            if not _is_same(dictionary, values):
                kind = OrderedDict if isinstance(dictionary, OrderedDict) else dict
                kind.clear(dictionary)
                for key, value in values.items():
                    kind.__setitem__(dictionary, key, value)
        for container, values in self._others:
            container.clear()
            container.update(values) if isinstance(container, set) else container.extend(values)
        for tensor, values, version in self._tensors:
            if tensor._version != version:
                rewrite(tensor, values)
        for array, values in self._arrays:
            if array.flags.writeable:
                np.copyto(array, values)
        for generator, state in self._generators:
            generator.set_state(state)


def _as_stored(dictionary: dict[Any, Any]) -> dict[Any, Any]:
    """Copy a dictionary, or what one of another class has stored: that may answer otherwise."""
    if type(dictionary) in _PLAIN:
        return dict(dictionary)
    return {key: dict.__getitem__(dictionary, key) for key in dict.keys(dictionary)}


def _is_same(now: dict[Any, Any], then: dict[Any, Any]) -> bool:
    """Compare a dictionary with what it had stored, by identity and by order."""
    if type(now) not in _PLAIN:
        now = _as_stored(now)
    return _alike(now, then) and _alike(now.values(), then.values())


def _alike(now: Collection[Any], then: Collection[Any]) -> bool:
    """Compare containers by the identity of what they hold."""
    return len(now) == len(then) and all(map(is_, now, then))


def rewrite(tensor: Tensor, values: Tensor) -> None:
    """Write values into a tensor, and take it out of the graph that a forward put it into."""
    with torch.no_grad():
        if tensor.grad_fn is not None:
            tensor.detach_()
        if tensor.shape == values.shape:
            tensor.copy_(values)
        else:
            tensor.data = values.clone()
