"""An answer alone with its arguments: it finds functions of its lesson, and no data."""

import ast
import inspect
import linecache
from collections.abc import Callable, Collection
from functools import partial
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch
from torch.nn import Module


def alone(answer: Callable, lesson: dict[str, Any], sees: Collection[str] = ()) -> Callable:
    """Return an answer of which the code finds no data of the lesson but its arguments.

    It finds modules, functions, classes, devices and dtypes, and what its own cell makes of these
    and of written numbers (`EPS = 1e-6`). It does not find other tensors, numbers, containers and
    models: an answer that reads those is right for the one case at hand only. Functions of the
    same cell, and those that a decorator, `vmap` or `functools.partial` has wrapped, are held to
    the same. Other functions of the lesson, which it may call, find what they need.

    Args:
        answer: A function, or a class: then, the methods that it defines.
        lesson: The names of the lesson.
        sees: Names of data that it finds all the same.

    Returns:
        The answer in that form, which raises `NameError` where it reaches for anything else.
    """
    names = {
        name: value for name, value in lesson.items() if name in sees or not _is_data(name, value)
    }
    copies = {}

    def moved(value: Any) -> Any:
        if isinstance(value, partial):
            return partial(moved(value.func), *value.args, **value.keywords)
        if not _is_function(value):
            return value
        if value not in copies:  # a function may hold itself
            old = value.__closure__ or ()
            new = tuple(CellType() for _ in old)
            found = names if value.__globals__ is lesson else value.__globals__
            copy = FunctionType(value.__code__, found, value.__name__, value.__defaults__, new)
            copy.__kwdefaults__ = value.__kwdefaults__
            copies[value] = copy
            for cell, before in zip(new, old, strict=True):
                cell.cell_contents = moved(before.cell_contents)
        return copies[value]

    file = file_of(answer)
    for name in _written_out(file, lesson, names):
        names[name] = lesson[name]
    for name, value in lesson.items():
        if _is_function(value) and file_of(value) == file:
            names[name] = moved(value)
    if isinstance(answer, type):
        own = {name: moved(each) for name, each in vars(answer).items() if _is_function(each)}
        return type(answer)(answer.__name__, (answer,), own)
    return moved(answer)


def file_of(answer: Any) -> str:
    """Return the name by which Python knows the cell that an answer was written in."""
    while isinstance(answer, partial):
        answer = answer.func
    if isinstance(answer, type):
        answer = next(filter(_is_function, vars(answer).values()), None)
    code = getattr(inspect.unwrap(answer), "__code__", None) if callable(answer) else None
    return code.co_filename if code else ""


def _written_out(file: str, lesson: dict[str, Any], names: dict[str, Any]) -> list[str]:
    """List the names that a cell imports, or assigns what takes no data of the lesson to make."""
    found: list[str] = []
    for line in ast.parse("".join(linecache.getlines(file))).body:
        if isinstance(line, ast.Import | ast.ImportFrom):
            found += [each.asname or each.name for each in line.names]
        elif isinstance(line, ast.Assign | ast.AnnAssign) and line.value is not None:
            read = {each.id for each in ast.walk(line.value) if isinstance(each, ast.Name)}
            if all(name in names or name in found or name not in lesson for name in read):
                targets = line.targets if isinstance(line, ast.Assign) else [line.target]
                found += [each.id for t in targets for each in ast.walk(t) if _is_stored(each)]
    return [name for name in found if name in lesson]


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_function(value: Any) -> bool:
    return isinstance(value, FunctionType)


def _is_data(name: str, value: Any) -> bool:
    if name.startswith("__") or isinstance(value, ModuleType | torch.device | torch.dtype):
        return False
    return isinstance(value, Module) or not callable(value)
