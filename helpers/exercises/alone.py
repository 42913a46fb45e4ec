"""An answer alone with its arguments: it finds functions of its lesson, and no data."""

from collections.abc import Callable, Collection
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.nn import Module


def alone(answer: Callable, lesson: dict[str, Any], sees: Collection[str] = ()) -> Callable:
    """Return an answer of which the code finds no data of the lesson but its arguments.

    It finds modules, functions, classes, devices and dtypes. It does not find tensors, numbers,
    containers and models: an answer that reads those is right for the one case at hand only.
    Functions of the same cell are held to the same. Other functions of the lesson, which it may
    call, find what they need.

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

    def moved(function: FunctionType) -> FunctionType:
        copy = FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, function.__closure__
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        return copy

    if isinstance(answer, type):
        own = {name: moved(each) for name, each in vars(answer).items() if _is_function(each)}
        return type(answer)(answer.__name__, (answer,), own)
    if not _is_function(answer):
        return answer
    for name, value in lesson.items():
        if _is_function(value) and value.__code__.co_filename == answer.__code__.co_filename:
            names[name] = moved(value)
    return moved(answer)


def _is_function(value: Any) -> bool:
    return isinstance(value, FunctionType)


def _is_data(name: str, value: Any) -> bool:
    if name.startswith("__") or isinstance(value, ModuleType | torch.device | torch.dtype):
        return False
    return isinstance(value, Module) or not callable(value)
