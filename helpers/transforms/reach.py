"""What code reaches: the functions and modules that a model or a loss may call."""

from collections.abc import Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

_CONTAINERS = (list, tuple, dict)

# This package may be called otherwise than `helpers`, or be merged into a folder of that name that
# holds somebody else's modules, too. So it is known by its modules, not by its name.
_PACKAGE = __package__.rpartition(".")[0]
_MODULES = (
    "transforms",
    "layers",
    "gradients",
    "jacobians",
    "norms",
    "noise",
    "privacy",
    "kernels",
    "projection",
    "gradient_computers",
    "model_outputs",
    "metagradients",
    "features",
    "limits",
    "numbers",
    "devices",
)
_OWN_EXACTLY = frozenset(f"{_PACKAGE}.{name}" for name in _MODULES)
_OWN = tuple(f"{name}." for name in _OWN_EXACTLY)


def reached(roots: Iterable[Any], *ends: Any) -> Iterator[Any]:
    """Yield all that modules or functions reach: attributes, closures, globals, containers.

    The walk does not enter `ends`.
    """
    visited = set()
    for end in ends:
        visited.add(id(end))
    waiting = [*roots]
    while waiting:
        value = waiting.pop()
        if id(value) in visited:
            continue
        if callable(value) or type(value) in _CONTAINERS:
            visited.add(id(value))
            yield value
            waiting.extend(_named_by(value))


def modules_of(function: Any, model: nn.Module) -> list[nn.Module]:
    """Return the modules that a function is or reaches, other than by the model."""
    modules = []
    for value in reached([function], model):
        if isinstance(value, nn.Module):
            modules.append(value)
    return modules


def parameters_of(function: Any, model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters that a function reaches, other than by the model, and what they are."""
    for value in reached([function], model):
        if isinstance(value, nn.Module):
            for name, parameter in value.named_parameters(recurse=False):
                yield f"{name} of {type(value).__name__}", parameter
            continue
        for held in _named_by(value):
            if isinstance(held, nn.Parameter):
                yield f"a parameter {tuple(held.shape)}", held


def _named_by(value: Any) -> Iterable[Any]:
    """Return the objects that an object may call."""
    if isinstance(value, torch.jit.ScriptModule):
        return []  # none of Python's
    if isinstance(value, nn.Module):
        return [type(value).forward, *vars(value).values(), *value.children()]
    if isinstance(value, dict):
        return filter(callable, value.values())
    if isinstance(value, (list, tuple)):
        return filter(callable, value)
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__, *_held_by(value.__self__)]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, FunctionType):
        return _named_by_function(value)
    return _held_by(value)


def _held_by(value: Any) -> list[Any]:
    """Return the attributes of an object of a class of the reader's own, such as a loss."""
    kind = type(value)
    is_foreign = kind.__module__.startswith(("torch.", "builtins", "functools"))
    if is_foreign or isinstance(value, (type, nn.Module)) or not hasattr(value, "__dict__"):
        return []
    attributes = list(vars(value).values())
    if callable(value):
        attributes.append(kind.__call__)
    return attributes


def _named_by_function(function: FunctionType) -> list[Any]:
    """Return what a function closes over, its defaults, and the globals that it names."""
    values = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # the cell is empty: its variable is assigned later, or never
            continue
    values.extend(function.__defaults__ or ())
    values.extend((function.__kwdefaults__ or {}).values())
    module_name = function.__module__ or ""
    if module_name.startswith("torch.") or is_own(module_name):
        return values  # neither scripts anything

    names = _names(function.__code__)
    for name in names:
        member = function.__globals__.get(name)
        values.append(member)
        # Of a module (`import x; x.f()`), the attributes that the code names. Reading them from
        # `vars` loads nothing in a module that loads its parts lazily.
        if isinstance(member, ModuleType) and not member.__name__.startswith("torch"):
            for attribute in names:
                values.append(vars(member).get(attribute))
    return values


def is_own(module_name: str) -> bool:
    """Tell whether a module, by its full name, is one of this package's that run the engine."""
    return module_name.startswith(_OWN) or module_name in _OWN_EXACTLY


def _names(code: CodeType) -> set[str]:
    """Return the names that code and the functions in it read."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names
