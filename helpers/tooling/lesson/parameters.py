"""The parameters of a lesson: what its parameters cell declares, and values checked against it."""

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import papermill
import torch

from helpers import data, devices


class Parameter(NamedTuple):
    """A line of the parameters cell, such as `batch_size: int = 64  # B, the number of samples`."""

    default: int | str
    meaning: str


def declared(lesson: Path) -> dict[str, Parameter]:
    """Read the parameters cell of a lesson."""
    return {
        name: Parameter(ast.literal_eval(each["default"]), each["help"])
        for name, each in papermill.inspect_notebook(lesson).items()
    }


def check(
    lesson: Path, assignments: Sequence[str], device: str | torch.device
) -> dict[str, int | str]:
    """Turn what is given for a lesson into all the values that it runs with.

    Args:
        lesson: The notebook.
        assignments: Such as `["batch_size=32", "dataset=random"]`.
        device: Where the lesson will run.

    Returns:
        The values by name, in the types that the lesson declares, with the device's name.

    Raises:
        ValueError: With one sentence about the first thing that would not do.
    """
    values = {name: each.default for name, each in declared(lesson).items()}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ValueError(f"a parameter is given as name=value, got {assignment!r}")
        if name == "device":
            raise ValueError("the device is not set in PARAMS: say DEVICE=cpu, or --device cpu")
        if name not in values:
            raise ValueError(f"{lesson.name} has no parameter {name!r}, it has {', '.join(values)}")
        values[name] = value if isinstance(values[name], str) else _whole_number(name, value)
    data.check(values["dataset"], values["batch_size"])
    data.check(values["dataset"], values.get("training_size", 1))
    devices.check_seed(values["seed"])
    return values | {"device": str(device)}


def _whole_number(name: str, text: str) -> int:
    lowest = 0 if name == "seed" else 1
    try:
        number = int(text)
    except ValueError:
        number = lowest - 1
    if number < lowest:
        raise ValueError(f"{name} must be a whole number, at least {lowest}, got {text!r}")
    return number
