"""The parameters of a lesson: what its parameters cell declares, and values checked against it."""

import ast
import json
import re
from collections.abc import Sequence
from pathlib import Path

LINE = r"(\w+): \w+ = (.+?)  # (.+)"
"""A line of the parameters cell: name, type, default, meaning."""


def declared(lesson: Path) -> dict[str, tuple[int | str, str]]:
    """Read the parameters cell of a lesson: `{name: (default, meaning)}`."""
    cells = json.loads(lesson.read_text())["cells"]
    (cell,) = (each for each in cells if "parameters" in each["metadata"].get("tags", []))
    found = (re.fullmatch(LINE, line.rstrip()) for line in cell["source"])
    return {each[1]: (ast.literal_eval(each[2]), each[3]) for each in found if each}


def check(lesson: Path, assignments: Sequence[str], device: object) -> dict[str, int | str]:
    """Turn assignments such as `"batch_size=32"` into all the values that a lesson runs with.

    Raises:
        ValueError: With one sentence about the first thing that would not do.
    """
    values = check_names(lesson, assignments)
    from helpers import data, devices
    from helpers.transforms.numbers import check_count

    for name, _, value in (each.partition("=") for each in assignments):
        if not isinstance(values[name], str):
            value = int(value) if value.isdecimal() else value
            check_count(name, value, least=0 if name == "seed" else 1)
        values[name] = value
    own = declared(lesson)["dataset"][0]  # digits, or the text of a lesson
    if values["dataset"] not in (own, "random"):
        raise ValueError(f"dataset must be {own!r} or 'random', got {values['dataset']!r}")
    if own in data.DATASETS:
        data.check(values["dataset"], values["batch_size"])
        data.check(values["dataset"], values.get("training_size", 1))
    devices.check_seed(values["seed"])
    return values | {"device": str(device)}


def check_names(lesson: Path, assignments: Sequence[str]) -> dict[str, int | str]:
    """Return the defaults of a lesson that has all the names assigned; needs no torch.

    Raises:
        ValueError: An assignment is none, or the lesson has no such parameter.
    """
    values = {name: default for name, (default, _) in declared(lesson).items()}
    for assignment in assignments:
        name, equals, _ = assignment.partition("=")
        if not equals:
            raise ValueError(f"a parameter is given as name=value, got {assignment!r}")
        if name == "device":
            raise ValueError("the device is not set in PARAMS: say DEVICE=cpu, or --device cpu")
        if name not in values:
            raise ValueError(f"{lesson.name} has no parameter {name!r}, it has {', '.join(values)}")
    return values
