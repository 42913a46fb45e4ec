"""The parameters of a lesson: what its parameters cell declares, and values checked against it."""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

LINE = r"(\w+): \w+ = (.+?)  # (.+)"
"""A line of the parameters cell: name, type, default, meaning."""


def declared(lesson: Path) -> dict[str, tuple[int | str, str]]:
    """Read the parameters cell of a lesson: `{name: (default, meaning)}`."""
    parameters = {}
    for cell in json.loads(lesson.read_text("utf-8"))["cells"]:
        if "parameters" in cell["metadata"].get("tags", []):
            for line in cell["source"]:
                match = re.fullmatch(LINE, line.rstrip())
                if match:
                    name, default, meaning = match.groups()
                    parameters[name] = (ast.literal_eval(default), meaning)
    return parameters


def check(lesson: Path, assignments: Sequence[str]) -> dict[str, int | str]:
    """Turn assignments such as `"batch_size=32"` into values for a lesson; needs no torch.

    Raises:
        ValueError: The message describes the first invalid assignment.
    """
    defaults = {}
    for name, (default, _) in declared(lesson).items():
        defaults[name] = default
    values: dict[str, int | str] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"a parameter is given as name=value, got {name!r}")
        if name not in defaults or name == "device":
            there = ", ".join(other for other in defaults if other != "device")
            raise ValueError(f"PARAMS of {lesson.name} are {there} (and DEVICE), not {name!r}")
        values[name] = _whole_number(name, text) if isinstance(defaults[name], int) else text
    _check_dataset(defaults["dataset"], defaults | values)
    return values


def _whole_number(name: str, text: str) -> int:
    """Read the value of a size or of the seed."""
    least, most = 1, 10**9
    if name == "seed":
        least, most = 0, 2**32 - 1  # what NumPy takes
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, got {text!r}")
    return int(text)


def _check_dataset(default: str, settings: Mapping[str, int | str]) -> None:
    """Raise ValueError unless the lesson can load these data, in these numbers."""
    dataset = settings["dataset"]
    if dataset not in (default, "random"):
        raise ValueError(f"dataset must be {default!r} or 'random', got {dataset!r}")
    for name in ("batch_size", "training_size"):
        if dataset == "digits" and settings.get(name, 0) > 1797:
            raise ValueError(f"there are only 1797 digits, but {name} is {settings[name]}")
