"""What a forward keeps beside its module: in attributes of its class, in variables of its file."""

import dis
import functools
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_MISSING = object()
_HOLDERS = (list, dict, set, deque, Tensor, np.ndarray, torch.Generator)
_WRAPPERS = (staticmethod, classmethod)


class Outside:
    """The names outside of modules that their forwards can bind, and the values that they hold.

    They are read from the code: that of `forward`, of functions that a module holds, and of what
    these call in the same class or in the same file. What torch itself defines keeps nothing.

    Args:
        modules: Modules.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.holders: list[Any] = []
        """Containers, tensors, arrays and objects that the code names."""
        self._bound: list[tuple[Any, str, Any]] = []
        seen: set[Any] = set()
        for module in modules:
            own = tuple(each for each in type(module).__mro__ if _is_own(each))
            functions = [] if not own else [getattr(type(module), "forward", None)]
            functions += [each for each in vars(module).values() if _is_function(each)]
            for function in functions:
                self._visit(function, own, seen)

    def changed(self) -> list[str]:
        """List the names that are bound to something else."""
        return [
            name
            for owner, name, value in self._bound
            if _variables(owner).get(name, _MISSING) is not value
        ]

    def undo(self) -> None:
        """Bind the names again to what they were bound to."""
        for owner, name, value in self._bound:
            if _variables(owner).get(name, _MISSING) is value:
                continue
            if isinstance(owner, dict):
                owner.pop(name) if value is _MISSING else owner.update({name: value})
            elif value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)

    def _visit(self, function: Any, classes: tuple[type, ...], seen: set[Any]) -> None:
        if not _is_function(function) or (function, classes) in seen:
            return
        seen.add((function, classes))
        names, attributes, variables = _names(function.__code__)
        classes += tuple(
            each
            for name in names
            if isinstance(each := function.__globals__.get(name), type)
            and each not in classes
            and each.__module__ == function.__module__
        )
        self._bound += [
            (each, name, vars(each).get(name, _MISSING)) for each in classes for name in attributes
        ]
        for name in variables:
            here = function.__globals__
            self._bound.append((here, name, here.get(name, _MISSING)))
        for name in names:
            for variables in (*map(vars, classes), function.__globals__):
                value = variables.get(name)
                if isinstance(value, _WRAPPERS):
                    value = value.__func__
                elif isinstance(value, property):
                    value = value.fget
                if _is_function(value) and value.__module__ == function.__module__:
                    self._visit(value, classes, seen)
                elif isinstance(value, _HOLDERS) or _is_object_of(value, function):
                    self.holders.append(value)


def _variables(owner: Any) -> Mapping[str, Any]:
    return owner if isinstance(owner, dict) else vars(owner)


def _is_own(kind: type) -> bool:
    return kind is not object and not f"{kind.__module__}.".startswith("torch.")


def _is_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and not value.__module__.startswith("torch.")


def _is_object_of(value: Any, function: types.FunctionType) -> bool:
    """Say whether it is an object of a class that stands in the function's file."""
    kind = type(value)
    return kind.__module__ == function.__module__ and not isinstance(value, nn.Module | type)


@functools.cache
def _names(code: types.CodeType) -> tuple[list[str], list[str], list[str]]:
    """List the names that code uses, the attributes that it binds, and the variables of its file.

    The code of functions within is part of it.
    """
    names: dict[str, None] = dict.fromkeys(code.co_names)
    attributes: dict[str, None] = {}
    variables: dict[str, None] = {}
    for inner in _codes(code):
        names |= dict.fromkeys(inner.co_names)
        for step in dis.get_instructions(inner):
            if step.opname in ("STORE_ATTR", "DELETE_ATTR"):
                attributes[step.argval] = None
            elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                variables[step.argval] = None
    return [*names], [*attributes], [*variables]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
