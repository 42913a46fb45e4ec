"""The parameters of a lesson: what its parameters cell declares, and values checked against it."""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import papermill
import torch

from helpers import data, devices
from helpers.tooling.lesson import files

REQUIRED = ("device", "dataset", "batch_size", "seed")


class Parameter(NamedTuple):
    """A line of the parameters cell, such as `batch_size: int = 64  # B, the number of samples`."""

    default: int | str
    meaning: str


def parse(assignments: Sequence[str]) -> dict[str, str]:
    """Split `["batch_size=32", "dataset=random"]` into names and values.

    Raises:
        ValueError: One of them is not `name=value`, or a name comes twice.
    """
    values: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise ValueError(f"a parameter is given as name=value, got {assignment!r}")
        if name in values:
            raise ValueError(f"parameter {name!r} is given twice")
        values[name] = value
    return values


def declared(lesson: Path) -> dict[str, Parameter]:
    """Read the parameters cell of a lesson.

    Raises:
        ValueError: The file is no notebook, or a name that every lesson has is missing.
    """
    files.read(lesson)  # which says in a sentence what is wrong with the file
    found = {
        name: Parameter(ast.literal_eval(each["default"]), each["help"])
        for name, each in papermill.inspect_notebook(lesson).items()
    }
    if missing := [name for name in REQUIRED if name not in found]:
        raise ValueError(f"the parameters cell of {lesson.name} lacks {', '.join(missing)}")
    return found


def defaults(lesson: Path) -> dict[str, int | str]:
    """Read what a lesson's parameters are if none are given; raises as `declared` does."""
    return {name: each.default for name, each in declared(lesson).items()}


def check(lesson: Path, given: Mapping[str, str], device: torch.device) -> dict[str, int | str]:
    """Turn the values given for a lesson into those that it can run with.

    Args:
        lesson: The notebook.
        given: Names and values, as text.
        device: Where the lesson will run.

    Returns:
        The values by name, in the types that the lesson declares, and the device's name.

    Raises:
        ValueError: With one sentence about the first thing that would not do.
    """
    usual = defaults(lesson)
    if "device" in given:
        raise ValueError("the device is not set in PARAMS: say DEVICE=cpu, or --device cpu")
    for name in given:
        if name not in usual:
            names = ", ".join(usual)
            raise ValueError(f"{lesson.name} has no parameter {name!r}, it has {names}")
    values = {name: _convert(name, text, type(usual[name])) for name, text in given.items()}
    all_values = usual | values
    data.check(all_values["dataset"], all_values["batch_size"])
    devices.check_seed(all_values["seed"])
    for name, value in values.items():
        if isinstance(value, int) and name != "seed" and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if "training_size" in values:
        data.check(all_values["dataset"], values["training_size"])
    return values | {"device": str(device)}


def _convert(name: str, text: str, kind: type) -> int | str:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, got {text!r}") from None
