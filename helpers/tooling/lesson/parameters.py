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
    (cell,) = (cell for cell in cells if "parameters" in cell["metadata"].get("tags", []))
    matches = (re.fullmatch(LINE, line.rstrip()) for line in cell["source"])
    return {match[1]: (ast.literal_eval(match[2]), match[3]) for match in matches if match}


def check(lesson: Path, assignments: Sequence[str]) -> dict[str, int | str]:
    """Turn assignments such as `"batch_size=32"` into values for a lesson; needs no torch.

    Raises:
        ValueError: The message describes the first invalid assignment.
    """
    defaults = {name: default for name, (default, _) in declared(lesson).items()}
    values: dict[str, int | str] = {}
    for name, equals, text in (assignment.partition("=") for assignment in assignments):
        if not equals:
            raise ValueError(f"a parameter is given as name=value, got {name!r}")
        if name not in defaults or name == "device":
            there = ", ".join(other_name for other_name in defaults if other_name != "device")
            raise ValueError(f"PARAMS of {lesson.name} are {there} (and DEVICE), not {name!r}")
        values[name] = text
        if isinstance(defaults[name], int):
            least, most = (0, 2**32 - 1) if name == "seed" else (1, 10**9)
            if not text.isdecimal() or not least <= int(text) <= most:
                bounds = f"a whole number from {least} to {most}"
                raise ValueError(f"{name} must be {bounds}, got {text!r}")
            values[name] = int(text)
    default, settings = defaults["dataset"], defaults | values
    if settings["dataset"] not in (default, "random"):
        raise ValueError(f"dataset must be {default!r} or 'random', got {settings['dataset']!r}")
    for name in {"batch_size", "training_size"} & settings.keys():
        if settings["dataset"] == "digits" and settings[name] > 1797:
            raise ValueError(f"there are only 1797 digits, but {name} is {settings[name]}")
    return values
