"""The parameters of a lesson: what its parameters cell declares, and values checked against it."""

import ast
from collections.abc import Sequence
from pathlib import Path

import papermill
import torch

from helpers import data, devices
from helpers.transforms.numbers import check_count


def declared(lesson: Path) -> dict[str, tuple[int | str, str]]:
    """Read the parameters cell of a lesson: `{name: (default, meaning)}`."""
    return {
        name: (ast.literal_eval(each["default"]), each["help"])
        for name, each in papermill.inspect_notebook(lesson).items()
    }


def check(
    lesson: Path, assignments: Sequence[str], device: str | torch.device
) -> dict[str, int | str]:
    """Turn assignments such as `"batch_size=32"` into all the values that a lesson runs with.

    Raises:
        ValueError: With one sentence about the first thing that would not do.
    """
    values = {name: default for name, (default, _) in declared(lesson).items()}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ValueError(f"a parameter is given as name=value, got {assignment!r}")
        if name == "device":
            raise ValueError("the device is not set in PARAMS: say DEVICE=cpu, or --device cpu")
        if name not in values:
            raise ValueError(f"{lesson.name} has no parameter {name!r}, it has {', '.join(values)}")
        if not isinstance(values[name], str):
            value = int(value) if value.isdecimal() else value
            check_count(name, value, least=0 if name == "seed" else 1)
        values[name] = value
    data.check(values["dataset"], values["batch_size"])
    data.check(values["dataset"], values.get("training_size", 1))
    devices.check_seed(values["seed"])
    return values | {"device": str(device)}
